"""Devices, streams, generators, storages: questions of programs, and their answers."""

from __future__ import annotations

import copy
import pickle

import torch

from tests.startup.cpu_programs import model, program


@program
def storage_copy():
    a = torch.UntypedStorage(4)
    b = torch.arange(4, dtype=torch.uint8).untyped_storage()
    a.copy_(b, non_blocking=True)
    r = [list(a)]
    a = torch.UntypedStorage(4)
    a.copy_(b, True)
    r.append(list(a))
    a.copy_(b)
    a.copy_(src=b)
    return (r, list(a))


@program
def storage_misc():
    s = torch.arange(4.0).untyped_storage()
    return (
        s.nbytes(),
        len(s),
        s.tolist(),
        s.clone().tolist(),
        s.resizable(),
        s.is_pinned(),
        s.is_shared(),
        str(s.device),
        s[1:3].tolist(),
        s.is_cuda,
    )


@program
def typed_storage():
    s = torch.arange(4.0).storage()
    return (s.tolist(), s.is_pinned(), s.cpu().tolist())


@program
def storage_errors():
    torch.UntypedStorage(4).copy_(torch.UntypedStorage(5))


@program
def storage_new_error():
    torch.UntypedStorage("a")


@program
def storage_pin():
    torch.UntypedStorage(4).pin_memory()


@program
def pin_tensor():
    return torch.ones(2).pin_memory()


@program
def pin_empty():
    return torch.zeros(2, pin_memory=True)


@program
def is_pinned():
    return (torch.ones(2).is_pinned(), torch.ones(2).is_shared())


@program
def autocast_cpu():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (
            model()(torch.ones(1, 4)),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
        )


@program
def autocast_cuda():
    with torch.autocast("cuda"):
        return model()(torch.ones(1, 4))


@program
def autocast_old():
    with torch.cuda.amp.autocast():
        return model()(torch.ones(1, 4))


@program
def autocast_bad():
    torch.autocast("nonsense")


@program
def scaler_cpu():
    m = model()
    o = torch.optim.SGD(m.parameters(), 0.1)
    s = torch.amp.GradScaler("cpu")
    s.scale(m(torch.ones(1, 4)).sum()).backward()
    s.step(o)
    s.update()
    return (s.get_scale(), list(m.parameters()))


@program
def scaler_default():
    m = model()
    o = torch.optim.SGD(m.parameters(), 0.1)
    s = torch.amp.GradScaler()
    s.scale(m(torch.ones(1, 4)).sum()).backward()
    s.step(o)
    s.update()
    return (s.get_scale(), s.is_enabled())


@program
def generator_pickle():
    g = torch.Generator().manual_seed(3)
    return (
        g.get_state(),
        type(g).__name__,
        repr(g)[:20],
        isinstance(g, torch._C.Generator),
        g.clone_state().initial_seed() if hasattr(g, "clone_state") else 0,
        copy.deepcopy(g).initial_seed(),
        pickle.loads(pickle.dumps(g)).initial_seed(),
    )


@program
def generator_types():
    return (
        type(torch.default_generator).__name__,
        isinstance(torch.default_generator, torch.Generator),
        isinstance(torch.Generator(), torch._C.Generator),
        torch.Generator("cpu").device,
        torch.Generator(device=torch.device("cpu")).device,
    )


@program
def generator_bad():
    torch.Generator("cuda")


@program
def generator_bad2():
    torch.Generator(device=3.5)


@program
def generator_meta():
    return torch.Generator("meta").device


@program
def generator_subclass():

    class G(torch.Generator):
        pass

    return (
        G().manual_seed(1).initial_seed(),
        issubclass(torch.Generator, object),
        torch.Generator.__name__,
        torch.Generator.__module__,
    )


@program
def stream_cpu():
    torch.Stream()


@program
def stream_cpu_d():
    torch.Stream(device="cpu")


@program
def event_cpu():
    return torch.Event(device="cpu")


@program
def cuda_things():
    return (
        torch.cuda.is_available(),
        torch.cuda.device_count(),
        torch.backends.mps.is_available(),
        torch.xpu.is_available(),
        torch.cuda.is_initialized(),
    )


@program
def cuda_error():
    torch.ones(2, device="cuda")


@program
def cuda_sync():
    torch.cuda.synchronize()


@program
def cuda_seed():
    torch.cuda.manual_seed_all(0)
    return torch.rand(2).shape


@program
def device_module_cpu():
    return (
        torch.get_device_module("cpu").__name__,
        torch.cpu.is_available(),
        torch.cpu.current_device(),
        torch.cpu.synchronize(),
        torch.cpu.device_count(),
    )


@program
def device_module_default():
    return torch.get_device_module().__name__


@program
def device_module_cuda():
    return torch.get_device_module("cuda").__name__


@program
def privateuse_name():
    torch.device("nosuch")


@program
def tensor_to_foo():
    torch.ones(2).to("npu")


@program
def profiler():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as p:
        torch.ones(3) @ torch.ones(3)
    return sorted({e.key for e in p.key_averages()})


@program
def profiler_default():
    from torch.profiler import profile, supported_activities

    with profile() as p:
        torch.ones(3) @ torch.ones(3)
    return (
        sorted({e.key for e in p.key_averages()}),
        sorted(str(a) for a in supported_activities()),
    )


@program
def record_function():
    with torch.autograd.profiler.record_function("a"):
        pass
    with torch.autograd.profiler.emit_itt(False):
        pass


@program
def default_device():
    torch.set_default_device("cpu")
    try:
        return (torch.get_default_device(), torch.ones(2).device)
    finally:
        torch.set_default_device(None)


@program
def default_device_meta():
    with torch.device("meta"):
        m = model()
    return (
        [p.device for p in m.parameters()],
        [p.device for p in m.to_empty(device="cpu").parameters()],
    )


@program
def fork_rng():
    torch.manual_seed(0)
    with torch.random.fork_rng():
        torch.rand(3)
    a = torch.rand(2)
    with torch.random.fork_rng(devices=[]):
        torch.rand(3)
    return (a, torch.rand(2), torch.initial_seed(), torch.get_rng_state().sum())


@program
def fork_rng_cuda():
    with torch.random.fork_rng(device_type="cuda"):
        return torch.rand(1).shape


@program
def fork_rng_none():
    with torch.random.fork_rng(enabled=False):
        return torch.rand(1).shape


@program
def seeds():
    torch.manual_seed(-1)
    a = torch.rand(2)
    torch.seed()
    torch.random.manual_seed(2)
    return (a, torch.rand(2), torch.randperm(4), torch.default_generator.initial_seed())


@program
def types():
    x = torch.ones(2)
    return (
        x.type(),
        x.type(torch.int).type(),
        x.type("torch.DoubleTensor").type(),
        x.is_cpu,
        x.get_device(),
        x.device.index,
    )


@program
def type_cuda():
    torch.ones(2).type("torch.cuda.FloatTensor")


@program
def legacy():
    return (
        torch.FloatTensor([1, 2]),
        torch.Tensor(2, 3).shape,
        torch.ByteStorage(2).size(),
        torch.tensor([1]).new(2).shape,
    )


@program
def optim_capturable():
    m = model()
    o = torch.optim.AdamW(m.parameters(), capturable=True)
    m(torch.ones(1, 4)).sum().backward()
    o.step()
    return list(m.parameters())


@program
def accelerators():
    a = torch.accelerator
    return (a.is_available(), str(a.current_accelerator()), a.device_count())


@program
def accelerator_sync():
    torch.accelerator.synchronize()


@program
def accelerator_index():
    return torch.accelerator.current_device_index()


@program
def cudagraph():
    torch.cuda.CUDAGraph()


@program
def cuda_stream():
    torch.cuda.Stream()


@program
def cuda_event():
    return torch.cuda.Event().query()
