"""Questions of loggers to a card: its name, its memory, its dtypes; and marks of profilers."""

import torch

if not torch.cuda.is_available():
    print("ok")
    raise SystemExit
device = torch.device("cuda", torch.cuda.current_device())
properties = torch.cuda.get_device_properties(0)
assert properties.total_memory > 0 and properties.name == torch.cuda.get_device_name(device)
assert torch.cuda.get_device_capability(0) >= (7, 0) and properties.multi_processor_count > 0
assert torch.cuda.device_count() >= 1 and f"{torch.cuda.get_arch_list()[0]}".startswith("sm_")
assert tuple(map(int, torch.version.cuda.split("."))) >= (11, 0) and torch.backends.cuda.is_built()
bf16_ready = (
    torch.version.cuda
    and torch.cuda.is_bf16_supported()
    and torch.distributed.is_nccl_available()
    and torch.cuda.nccl.version() >= (2, 10)
)
assert bf16_ready
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated(device)
x = torch.empty(256, 256, device=device).normal_()
torch.cuda.synchronize(device)
assert torch.cuda.memory_allocated(device) >= before + x.numel() * x.element_size()
assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
assert torch.cuda.memory_reserved() >= 0 and "allocated" in torch.cuda.memory_summary()
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"]
del x
torch.cuda.empty_cache()
torch.cuda.ipc_collect()
torch.cuda.nvtx.range_push("step")
with torch.cuda.nvtx.range("inner"), torch.autograd.profiler.emit_nvtx(enabled=False):
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStop())
torch.cuda.nvtx.range_pop()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    torch.ones(2, device=device).sum()
assert profile.key_averages().table(sort_by="cpu_time_total", row_limit=3)
assert torch.get_device_module(device).is_available() and torch.cuda.is_initialized()
assert torch.get_device_module("cuda") is torch.cuda
print("ok")
