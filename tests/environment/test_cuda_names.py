"""All names of ``torch.cuda``: each answers, or names a remedy, and none looks for CUDA."""

from __future__ import annotations

import warnings

import pytest
import torch

import torch_jax
from torch_jax.environment import cuda_answers, cuda_names, redirects
from torch_jax.environment.regions import mapped

env = torch_jax.default_env()
LOST = ("not compiled with CUDA", "NVIDIA driver", "has no attribute", "dummy", "torch._C")

# What a call is made with, where calling it with nothing is no call.
ARGUMENTS = {
    "CUDAPluggableAllocator": ("path", "alloc", "free"),
    "CudaError": (0,),
    "DeferredCudaCallError": (),
    "ExternalStream": (1,),
    "GreenContext": (),
    "StreamContext": (None,),
    "amp.custom_bwd": (len,),
    "amp.custom_fwd": (len,),
    "caching_allocator_alloc": (8,),
    "caching_allocator_delete": (8,),
    "can_device_access_peer": (0, 1),
    "check_error": (0,),
    "jiterator._create_jit_fn": ("code",),
    "jiterator._create_multi_output_jit_fn": ("code", 2),
    "device": (0,),
    "device_of": (torch.ones(1),),
    "make_graphed_callables": (abs, ()),
    "manual_seed": (3,),
    "manual_seed_all": (3,),
    "memory._dump_snapshot": ("file",),
    "memory._set_allocator_settings": ("",),
    "nvtx.mark": ("here",),
    "nvtx.range": ("here",),
    "nvtx.range_end": (1,),
    "nvtx.range_push": ("here",),
    "nvtx.range_start": ("here",),
    "set_device": (1,),
    "set_per_process_memory_fraction": (0.5,),
    "set_rng_state": (torch.arange(16, dtype=torch.uint8),),
    "set_rng_state_all": ([torch.arange(16, dtype=torch.uint8)],),
    "set_stream": (None,),
    "set_sync_debug_mode": ("default",),
    "stream": (None,),
    "_sleep": (100,),
}
KEPT_FOR_ERRORS = ("CudaError", "cudaStatus")  # the C++ of CUDA makes them


@pytest.fixture(autouse=True)
def redirected():
    """``"cuda"`` means jax, as a program for CUDA finds it."""
    torch_jax.config.set("redirect_cuda", True)
    with env, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch_jax.config.set("redirect_cuda", False)


NAMES = cuda_names.names()  # as PyTorch has them, before any is replaced


def called(name: str):
    """What a name of ``torch.cuda`` gives a program that calls it."""
    found = torch.cuda
    for part in name.split("."):
        found = getattr(found, part)
    return found(*ARGUMENTS.get(name, ()))


@pytest.mark.slow
def test_each_name_answers_or_says_what_to_do():
    fates = {one.name: one.fate for one in NAMES}
    assert len(fates) > 120 and set(fates.values()) == {"answered", "kept", "refused"}
    wrong = {}
    for name, fate in fates.items():
        if name in KEPT_FOR_ERRORS:
            continue
        try:
            answer, error = called(name), None
        except Exception as raised:
            answer, error = None, raised
        if fate == "refused":
            is_right = isinstance(error, RuntimeError) and "needs CUDA itself" in str(error)
            instead = str(error).partition("here: ")[2]
            is_right = is_right and len(instead) > 10 and not answer
        else:
            is_right = error is None
        if not is_right or any(lost in str(error) for lost in LOST):
            wrong[name] = fate, error
    assert not wrong


def test_tables_name_what_there_is():
    """A row for a name that is gone answers nobody."""
    known = {one.name for one in NAMES}
    tables = {n for n in cuda_answers.ANSWERS if not n.startswith("backends.")}
    ours_alone = {n for n in tables - known if hasattr(torch.jax, n)}
    assert tables - known == ours_alone
    assert cuda_names.KEPT <= known
    assert all(
        any(one.name.startswith(beginning) for one in NAMES) or beginning.startswith("backends.")
        for beginning in cuda_answers.INSTEAD
        if beginning not in ("sparse",)
    )


def test_the_backends():
    assert torch.backends.cuda.is_built() and torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() > 90000
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False):
        assert torch.backends.cudnn.benchmark
    assert torch.version.cuda.split(".")[0] == "12"
    before = torch.backends.cuda.matmul.allow_tf32
    # the flags are frozen where torch.testing._internal was imported
    with torch.backends.__allow_nonbracketed_mutation():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        assert torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = before
    with torch.backends.cuda.sdp_kernel(enable_flash=False):
        assert not torch.backends.cuda.flash_sdp_enabled()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        pass
    torch.backends.cuda.cufft_plan_cache.clear()
    with pytest.raises(RuntimeError, match=r"cufft_plan_cache.max_size needs CUDA itself"):
        torch.backends.cuda.cufft_plan_cache[0].max_size = 3
    with pytest.raises(RuntimeError, match="plans transforms by itself"):
        torch.backends.cuda.cufft_plan_cache[0].size  # noqa: B018


def test_outside_of_the_environment_cuda_is_pytorchs_own():
    torch_jax.config.set("redirect_cuda", False)
    assert torch.version.cuda == torch.version.__dict__["cuda"]
    assert not torch.ones(1, device="jax").is_cuda
    if torch.version.cuda is None:
        assert not torch.backends.cuda.is_built() and torch.backends.cudnn.version() is None
        assert len(torch.cuda.default_generators) == 0 and not torch.cuda.is_available()
        with pytest.raises((AssertionError, RuntimeError), match="CUDA"):
            torch.cuda.current_device()
        with pytest.raises((TypeError, AssertionError), match="CUDA"):
            torch.cuda.FloatTensor(2)
    assert torch.ones(1, device="jax").type() == "torch.jax.FloatTensor"


def test_tensors_say_that_they_are_cuda_tensors():
    x = torch.ones(2, device="cuda")
    assert x.is_cuda and not x.cpu().is_cuda and torch.nn.Linear(2, 2).cuda(0).weight.is_cuda
    assert x.type() == "torch.cuda.FloatTensor" and x.cpu().type() == "torch.FloatTensor"
    assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.cuda.LongTensor)
    for kind in (torch.cuda.HalfTensor, "torch.cuda.HalfTensor", torch.float16):
        assert x.type(kind).dtype is torch.float16
    made = torch.cuda.LongTensor([1, 2])
    assert made.is_cuda and made.dtype is torch.int64 and made.tolist() == [1, 2]
    assert x.get_device() == 0 and x.to(0).is_cuda and torch.ones(2, device=0).is_cuda
    with pytest.raises(RuntimeError, match="sparse_coo_tensor"):
        torch.cuda.sparse.FloatTensor(2, 2)
    assert torch.cuda.default_generators[0].device.type == "jax"


def test_cuda_as_the_default_type():
    torch.set_default_tensor_type(torch.cuda.DoubleTensor)
    try:
        assert torch.ones(2).type() == "torch.cuda.DoubleTensor"
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    with torch.device("cpu"):
        assert torch.ones(2).type() == "torch.FloatTensor"
    assert torch.get_default_dtype() is torch.float32


def test_numbers_of_devices_mean_the_one_there_is():
    x = torch.ones(2)
    for device in ("cuda:1", torch.device("cuda", 1), torch.device("cuda:3")):
        assert x.to(device).device == mapped("cuda:0") or x.to(device).device.index == 0
        with torch.cuda.device(device):
            torch.cuda.set_device(device)
    assert x.cuda(1).is_cuda and x.to(1).is_cuda and x.to(1, non_blocking=True).is_cuda
    assert torch.cuda.current_device() == 0 and torch.cuda.device_count() == 1
    stream = torch.Stream(device="cuda")
    assert isinstance(stream, type(torch.cuda.current_stream()))
    assert torch.UntypedStorage(4, device="cuda").device.type == "jax"


def test_backends_of_processes():
    assert torch.distributed.is_nccl_available()
    assert redirects.backend("cuda:nccl,cpu:gloo") == "jax:jax,cpu:gloo"
    assert redirects.backend("cuda:0") == "jax" and redirects.backend(None) is None
