"""The environment: where factories put tensors, for whom, and that it is never left on."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import json
import pickle
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.processes import output, script
from tests.support.values import randn

env = torch_jax.default_env()


def where() -> str:
    """Where a factory puts a tensor now."""
    return torch.ones(2).device.type


@pytest.fixture(autouse=True)
def untouched():
    """Every test finds and leaves the environment disabled, and "cuda" meaning CUDA."""
    assert not env.enabled
    assert where() == "cpu"
    yield
    env.disable_globally()
    if torch_jax.config.get("redirect_cuda"):
        torch_jax.config.set("redirect_cuda", False)
    assert not env.enabled
    assert where() == "cpu"


def test_there_is_one_environment():
    found = [torch_jax.Environment(), copy.copy(env), copy.deepcopy(env)]
    found += [pickle.loads(pickle.dumps(env))]
    with ThreadPoolExecutor(8) as pool:
        found += pool.map(lambda _: torch_jax.default_env(), range(16))
    assert all(one is env for one in found)


def test_tensors_work_whether_or_not_it_is_enabled():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).to("jax").eval()
    x = randn(2, 3)
    plain = model(x)
    with env:
        inside = model(x)
    torch.testing.assert_close(inside.cpu(), plain.cpu(), rtol=0, atol=0)


# --- what it changes ------------------------------------------------------------------------------

FACTORIES = {
    "arange": lambda: torch.arange(3),
    "as_tensor": lambda: torch.as_tensor([1, 2]),
    "asarray": lambda: torch.asarray([1.0]),
    "empty": lambda: torch.empty(2),
    "empty_strided": lambda: torch.empty_strided((2,), (1,)),
    "eye": lambda: torch.eye(2),
    "fftfreq": lambda: torch.fft.fftfreq(4),
    "full": lambda: torch.full((2,), 1.0),
    "hann_window": lambda: torch.hann_window(4),
    "linspace": lambda: torch.linspace(0, 1, 3),
    "logspace": lambda: torch.logspace(0, 1, 3),
    "rand": lambda: torch.rand(2),
    "randint": lambda: torch.randint(3, (2,)),
    "randn": lambda: torch.randn(2),
    "randperm": lambda: torch.randperm(3),
    "scalar_tensor": lambda: torch.scalar_tensor(1.0),
    "tensor": lambda: torch.tensor([1.0]),
    "tril_indices": lambda: torch.tril_indices(3, 3),
    "zeros": lambda: torch.zeros(2),
    "module": lambda: nn.Linear(2, 2).weight,
    "distribution": lambda: torch.distributions.Normal(0.0, 1.0).sample((2,)),
    "default": lambda: torch.empty(0, device=torch.get_default_device()),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_without_a_device(name):
    with env:
        assert FACTORIES[name]().device.type == "jax"
    assert FACTORIES[name]().device.type == "cpu"


def test_a_device_that_is_given_is_kept():
    with env:
        assert torch.ones(2, device="cpu").device.type == "cpu"
        assert torch.zeros_like(torch.ones(2, device="cpu")).device.type == "cpu"
        assert torch.zeros(2, out=torch.empty(2, device="cpu")).device.type == "cpu"
        assert torch.empty(2, device="meta").device.type == "meta"
        with torch.device("cpu"):
            assert where() == "cpu"
            assert torch.get_default_device().type == "cpu"
        assert where() == "jax"


def test_what_pytorch_keeps_on_the_host_stays_there():
    with env:
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([weight])
        weight.sum().backward()
        optimizer.step()
        assert optimizer.state[weight]["step"].device.type == "cpu"
        data = torch.utils.data.TensorDataset(torch.arange(6, device="cpu"))
        batches = list(torch.utils.data.DataLoader(data, batch_size=3, shuffle=True))
        assert sorted(torch.cat([b for (b,) in batches]).tolist()) == list(range(6))
        assert "jax:0" in repr(torch.ones(2))


def test_the_default_can_be_left_alone():
    torch_jax.config.set("redirect_default", False)
    try:
        with env:
            assert where() == "cpu"
    finally:
        torch_jax.config.set("redirect_default", True)


CUDA = {
    "factory": lambda: torch.ones(2, device="cuda"),
    "like": lambda: torch.zeros_like(torch.ones(2, device="cpu"), device="cuda:0"),
    "new": lambda: torch.ones(2, device="cpu").new_zeros(3, device=torch.device("cuda")),
    "to": lambda: torch.ones(2, device="cpu").to("cuda"),
    "to with keywords": lambda: torch.ones(2, device="cpu").to(
        device=torch.device("cuda", 0), dtype=torch.float16
    ),
    "cuda": lambda: torch.ones(2, device="cpu").cuda(),
    "module to": lambda: nn.Linear(2, 2, device="cpu").to("cuda").weight,
    "module cuda": lambda: nn.Linear(2, 2, device="cpu").cuda().weight,
    "module made there": lambda: nn.Linear(2, 2, device="cuda").weight,
    "meta": lambda: nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
    "context": lambda: _ones_in(torch.device("cuda")),
    "generator": lambda: torch.ones(2, device=torch.Generator("cuda").device),
}


def _ones_in(device: torch.device) -> torch.Tensor:
    with device:
        return torch.ones(2)


@pytest.mark.parametrize("name", CUDA)
def test_cuda_means_jax_if_asked(name):
    torch_jax.config.set("redirect_cuda", True)
    with env:
        assert CUDA[name]().device.type == "jax"


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there, and means CUDA")
@pytest.mark.parametrize("name", CUDA)
def test_cuda_means_cuda_otherwise(name):
    with env, pytest.raises((AssertionError, RuntimeError)):
        CUDA[name]()
    torch_jax.config.set("redirect_cuda", True)  # but nowhere enabled
    with pytest.raises((AssertionError, RuntimeError)):
        CUDA[name]()


@pytest.mark.slow
def test_scripts_for_cuda_run(tmp_path):
    """The usual lines: choosing the device, autocast with a scaler, memory, seeds, saving."""
    available = torch.cuda.is_available()
    torch_jax.config.set("redirect_cuda", True)
    with env:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.cuda.manual_seed_all(0)
        model = nn.Linear(4, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(torch.randn(3, 4, device=device))
            loss = F.mse_loss(out, torch.zeros_like(out))
        assert out.dtype is torch.float16
        before = model.weight.detach().clone()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        assert not torch.equal(before, model.weight)
        assert torch.cuda.memory_allocated() > 0
        assert torch.cuda.device_count() == 1
        torch.save(model.state_dict(), tmp_path / "model.pt")
        loaded = torch.load(tmp_path / "model.pt", map_location="cuda")
        assert loaded["weight"].device.type == "jax"
        torch.save(torch.ones(2), tmp_path / "cuda")  # a path, and no device
        assert torch.load(tmp_path / "cuda").device.type == "jax"
    assert torch.cuda.is_available() == available


def _timed_on_a_stream():
    stream, x = torch.cuda.Stream(), torch.ones(3, device="cuda")
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream.wait_stream(torch.cuda.current_stream())
    start.record()
    with torch.cuda.stream(stream):
        y = x * 2
        x.record_stream(stream)
        end.record(stream)
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    done = torch.cuda.Event()
    done.record()
    stream.wait_event(done)
    assert done.query() and stream.query() and start.elapsed_time(end) >= 0
    assert isinstance(stream, torch.Stream) and isinstance(done, torch.Event)
    with torch.cuda.StreamContext(stream), torch.cuda.device(0), torch.cuda.device_of(x):
        return y


def _in_a_custom_function():
    class Doubled(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled()
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.ones(3, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_gpu_dtype() is torch.get_autocast_dtype("cuda") is torch.float16
        y = Doubled.apply(x)
    assert y.dtype is torch.float32 and not torch.is_autocast_enabled()
    y.sum().backward()
    return x.grad


def _through_pinned_memory():
    host = torch.zeros(3, device="cpu", pin_memory=True)
    for empty in (torch.empty(3, pin_memory=True), torch.empty_like(host, pin_memory=True)):
        assert empty.device.type == "cpu"
    on_device = torch.ones(3, device="cuda")
    back = torch.empty_like(on_device, device="cpu", pin_memory=True)
    back.copy_(on_device, non_blocking=True)
    assert back.tolist() == [1, 1, 1]
    return host.cuda(non_blocking=True)


def _with_memory_to_spare():
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0)
    assert 0 < free <= total == properties.total_memory
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor) >= (7, 0)
    stats = torch.cuda.memory_stats()
    assert stats["active_bytes.all.current"] <= stats["reserved_bytes.all.current"]
    assert "allocated" in torch.cuda.memory_summary()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.ipc_collect()
    with torch.cuda.nvtx.range("marked"):
        return torch.ones(3, device="cuda")


def _of_several_devices():
    model = nn.DataParallel(nn.Linear(3, 2, device="cpu")).cuda()
    return model(torch.ones(1, 3, device="cuda"))


USES = {
    "streams and events": _timed_on_a_stream,
    "autocast in functions of one's own": _in_a_custom_function,
    "pinned memory": _through_pinned_memory,
    "memory and properties": _with_memory_to_spare,
    "data parallel": _of_several_devices,
    "a storage": lambda: torch.ones(3, device="cpu").untyped_storage().cuda(),
}


@pytest.mark.filterwarnings("ignore:pin_memory does nothing", "ignore:.*get_autocast_gpu_dtype")
@pytest.mark.parametrize("name", USES)
def test_what_programs_for_cuda_use(name):
    torch_jax.config.set("redirect_cuda", True)
    with env:
        assert USES[name]().device.type == "jax"


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there, and means CUDA")
def test_streams_graphs_and_autocast_of_cuda_are_cudas_otherwise():
    # an event of a build with CUDA asks for the driver when it is recorded
    words = "CUDA|NVIDIA" if torch.version.cuda else "CUDA|dummy"
    for make in (torch.cuda.Stream, lambda: torch.cuda.Event().record(), torch.cuda.CUDAGraph):
        with pytest.raises(RuntimeError, match=words):
            make()
    with torch.autocast("jax"):
        assert not torch.is_autocast_enabled("cuda") and torch.is_autocast_enabled("jax")


def test_cuda_graphs_are_refused():
    torch_jax.config.set("redirect_cuda", True)
    with env, pytest.raises(RuntimeError, match="torch_jax.jit"):
        torch.cuda.CUDAGraph()


def test_questions_to_cuda_are_constants_of_compiled_functions():
    @torch.compile(backend="jax", fullgraph=True)
    def call(x):
        y = torch.ones(2, device=torch.cuda.current_device()) if torch.cuda.is_available() else x
        return y * 2 if torch.is_autocast_enabled() else y * torch.cuda.device_count()

    torch_jax.config.set("redirect_cuda", True)
    with env:
        x = torch.zeros(2, device="cuda")
        assert call(x).tolist() == [1, 1]
        with torch.autocast("cuda"):
            assert call(x).tolist() == [2, 2]
        assert call(x).tolist() == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    ["", "import torch._dynamo, torch_jax; torch._dynamo.trace_rules.clear_lru_cache()"],
    ids=["later", "before, and forgot its rules, as where a process group is made"],
)
def test_questions_to_cuda_are_constants_wherever_dynamo_is_imported(before):
    program = f"""
{before}
import torch, torch_jax
with torch_jax.default_env():
    has_cuda = torch.cuda.is_available()
    call = torch.compile(
        lambda x: x * 2 if torch.cuda.is_available() else x, backend="jax", fullgraph=True
    )
    print(call(torch.ones(1, device="jax")).item() == 1 + has_cuda)
"""
    assert output("-c", program, new=True) == "True"


def test_files_saved_on_cuda(tmp_path):
    """Their storages are marked; here the mark is put into a file made on the CPU."""
    torch.save(torch.arange(5.0), tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "cuda.pt", "w", zipfile.ZIP_STORED) as marked,
    ):
        for entry in plain.infolist():
            data = plain.read(entry)
            if entry.filename.endswith("data.pkl"):
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            marked.writestr(entry, data)
    torch_jax.config.set("redirect_cuda", True)
    with env:
        loaded = torch.load(tmp_path / "cuda.pt")
        assert loaded.device.type == "jax"
        assert loaded.tolist() == [0, 1, 2, 3, 4]
        assert torch.load(tmp_path / "cuda.pt", map_location="cpu").device.type == "cpu"


# --- for whom -------------------------------------------------------------------------------------


def test_regions_nest_any_way_round():
    with env:
        with env:
            env.enable_globally()
            with env:
                env.disable_globally()
                assert where() == "jax"  # this region is still open
            assert where() == "jax"
        assert env.enabled
    env.enable_globally()
    with env:
        pass
    assert where() == "jax"


def test_exceptions_leave_it_as_it_was():
    with pytest.raises(ZeroDivisionError):
        with env, env, contextlib.ExitStack() as stack:
            stack.enter_context(env)
            raise ZeroDivisionError
    assert where() == "cpu"


def test_exit_stacks_close_in_any_order():
    one, two = contextlib.ExitStack(), contextlib.ExitStack()
    one.enter_context(env)
    two.enter_context(env)
    one.close()
    assert where() == "jax"
    two.close()
    assert where() == "cpu"


def test_threads_have_regions_of_their_own():
    entered, checked = threading.Event(), threading.Event()

    def inside():
        with env:
            entered.set()
            checked.wait(10)
            return where()

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(inside)
        entered.wait(10)
        assert where() == "cpu"
        checked.set()
        assert result.result() == "jax"
        assert pool.submit(where).result() == "cpu"


def test_enabled_globally_it_is_so_on_threads_that_already_run():
    with ThreadPoolExecutor(2) as pool:
        assert pool.submit(where).result() == "cpu"
        pool.submit(env.enable_globally).result()
        assert (where(), pool.submit(where).result()) == ("jax", "jax")
        env.disable_globally()
        assert (where(), pool.submit(where).result()) == ("cpu", "cpu")


def test_tasks_have_regions_of_their_own():
    async def inside(found: list[str]) -> None:
        with env:
            await asyncio.sleep(0)
            found.append(where())
            await asyncio.sleep(0.01)
            found.append(where())

    async def outside(found: list[str]) -> None:
        for _ in range(4):
            await asyncio.sleep(0.002)
            found.append(where())

    async def main() -> None:
        await asyncio.gather(inside(ours), outside(theirs), inside(ours))
        assert where() == "cpu"

    ours: list[str] = []
    theirs: list[str] = []
    asyncio.run(main())
    assert set(ours) == {"jax"}
    assert set(theirs) == {"cpu"}


def _generator():
    with env:
        yield where()
        yield where()


@pytest.mark.slow
def test_a_generator_can_be_dropped_or_finished_elsewhere():
    dropped = _generator()
    assert next(dropped) == "jax"
    del dropped
    gc.collect()
    assert where() == "cpu"

    moved = _generator()
    next(moved)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: list(moved)).result()
        assert pool.submit(where).result() == "cpu"
    assert where() == "cpu"

    one, two = _generator(), _generator()
    next(one), next(two)
    one.close()
    assert where() == "jax"  # a block stays open while its generator waits, as all of Python's do
    two.close()
    assert where() == "cpu"


def test_a_context_manager_may_be_made_of_it():
    @contextlib.contextmanager
    def on_jax():
        with env:
            yield

    with on_jax():
        assert where() == "jax"
    assert where() == "cpu"


def test_decorated_functions_of_every_kind():
    @env
    def plain():
        """Says where."""
        return where()

    @env
    def steps():
        sent = yield where()
        try:
            yield sent
        except ValueError:
            yield where()

    @env
    async def coroutine():
        await asyncio.sleep(0)
        return where()

    @env
    async def async_steps():
        sent = yield where()
        try:
            yield sent
        except ValueError:
            yield where()

    async def drive() -> list:
        found = [await coroutine(), where()]
        generator = async_steps()
        found += [await anext(generator), where(), await generator.asend(3)]
        found += [await generator.athrow(ValueError), where()]
        with pytest.raises(StopAsyncIteration):
            await anext(generator)
        return found

    assert (plain(), plain.__doc__, where()) == ("jax", "Says where.", "cpu")
    generator = steps()
    found = [next(generator), where(), generator.send(3), generator.throw(ValueError), where()]
    assert found == ["jax", "cpu", 3, "jax", "cpu"]
    assert list(generator) == []
    assert asyncio.run(drive()) == ["jax", "cpu", "jax", "cpu", 3, "jax", "cpu"]


def test_backward_passes_see_the_region():
    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.full((2,), 2.0)

    with env:
        x = torch.ones(2, requires_grad=True)
        Doubling.apply(x).sum().backward()
    assert x.grad.cpu().tolist() == [2.0, 2.0]


def test_pure_functions_see_whether_it_is_enabled():
    @torch_jax.jit(pure=True)
    def scaled(x):
        return x * (2 if where() == "jax" else 3)

    x = torch.ones(3, device="jax")
    for _ in range(2):
        with env:
            assert scaled(x).tolist() == [2, 2, 2]
        assert scaled(x).tolist() == [3, 3, 3]
    assert scaled.explain().observed == 2
    assert "the environment" in scaled.explain().reasons[0]


@pytest.fixture(scope="module")
def forked():
    """What forked children of a process with an environment see, before and after its first use."""
    return json.loads(script("forked_environment"))


@pytest.mark.xdist_group("forked_environment")
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.slow
def test_a_forked_process(used, forked):
    """Where the parent has used the device, the child's factories make CPU tensors again."""
    child, parent = forked[used]
    assert parent == "jax"
    assert child == (["cpu", False] if used else ["jax", True])


def test_wrong_uses_say_what_to_do():
    with pytest.raises(TypeError, match="decorates functions"):
        env(3)
    with pytest.raises(TypeError, match="decorates functions"):
        env(nn.Linear)
    with pytest.raises(KeyError):
        env.config.get("no such setting")
    with pytest.raises(ValueError, match="cpu_fallback"):
        env.config.set("cpu_fallback", "perhaps")
    assert "not enabled" in repr(env)
