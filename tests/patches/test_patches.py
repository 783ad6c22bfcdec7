"""Every replacement is needed: without it the fault shows, and with it there is none.

A row whose fault no longer shows is one that PyTorch has made superfluous. A row that is not in
place names something that this PyTorch has moved.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing.reduction
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import torch.nested._internal.ops
import torch.utils.checkpoint
import torch.utils.dlpack as dlpack
import transformers.integrations.moe  # noqa: F401, its operators exist once it is imported
from torch import nn
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import flex_attention
from transformers.utils import import_utils

import torch_jax
from torch_jax.capture.state.watch import Watch
from torch_jax.core import backward, patching
from torch_jax.dispatch import autocast, ladder
from torch_jax.distributed import checkpoint_folders
from torch_jax.memory import parts, transfer
from torch_jax.memory.storage import wrap

Works = Callable[[], bool]
NEEDS: dict[str, Works] = {}  # by target: whether what users see is right; a fault may raise


def need(*targets: str) -> Callable[[Works], Works]:
    """Enter what shows that these targets have to be replaced."""

    def enter(works: Works) -> Works:
        NEEDS.update(dict.fromkeys(targets, works))
        return works

    return enter


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="jax")


def on_jax(value: Any) -> bool:
    return value.device.type == "jax"


# --- modules --------------------------------------------------------------------------------------


@need("torch.nn.Module._apply")
def moved_parameters_are_the_same_objects() -> bool:
    layer = nn.Linear(2, 2)
    weight = layer.weight
    return layer.to("jax").weight is weight


@need("torch.Tensor.data")
def data_may_come_from_the_device() -> bool:
    weight = nn.Parameter(torch.zeros(2))
    weight.data = ones(2)
    return on_jax(weight)


# --- constructors ---------------------------------------------------------------------------------


@need("torch.Generator")
def generators_of_the_device() -> bool:
    return torch.Generator(device="jax").manual_seed(0).device.type == "jax"


@need("torch.Stream", "torch.accelerator.current_stream")
def streams_wait_for_the_device() -> bool:
    streams = torch.Stream(device="jax"), torch.accelerator.current_stream()
    return all(isinstance(stream, torch.jax.Stream) for stream in streams)


@need("torch.Event")
def events_are_recorded() -> bool:
    event = torch.Event("jax", enable_timing=True)
    event.record()
    return event.elapsed_time(event) == 0


@need("torch.Tensor.pin_memory")
def pinning_changes_nothing() -> bool:
    tensor = torch.zeros(2)
    return tensor.pin_memory() is tensor


# --- torch.accelerator ----------------------------------------------------------------------------

_ANSWERS = """
    empty_cache get_device_capability get_memory_info max_memory_allocated max_memory_reserved
    memory_allocated memory_reserved memory_stats reset_accumulated_memory_stats
    reset_peak_memory_stats synchronize
"""


def answers(name: str) -> bool:
    getattr(torch.accelerator, name)()  # PyTorch's own raises
    return True


for _name in _ANSWERS.split():
    need(f"torch.accelerator.{_name}")(lambda name=_name: answers(name))  # type: ignore[misc]


@need("torch.accelerator.set_device_index")
def other_devices_are_refused() -> bool:
    try:
        torch.accelerator.set_device_index(1)
    except RuntimeError as error:
        return "ordinal 1" in str(error)
    return False


# --- tensors and storages -------------------------------------------------------------------------


@need("torch.Tensor.data_ptr")
def addresses_tell_tensors_apart() -> bool:
    one, other = ones(4), ones(4)
    return one.data_ptr() not in (0, other.data_ptr()) and one[1:].data_ptr() > one.data_ptr()


@need("torch._tensor_str._tensor_str")
def printing_compiles_nothing() -> bool:
    tensor = ones(next(_sizes))
    before = compiled()
    repr(tensor)
    return compiled() == before


_sizes = itertools.count(20)


def compiled() -> int:
    return sum(len(kernel.cache) for kernel in ladder.KERNELS_BY_OP.values())


@need("torch._tensor_str._str")
def printing_under_a_trace_fails_before_it_formats() -> bool:
    try:
        jax.make_jaxpr(lambda array: repr(wrap(array) + 1))(jnp.ones(3))
    except torch_jax.DataDependentError as error:
        return "_tensor_str" not in _frames(error)
    return False


def _frames(error: BaseException) -> set[str]:
    names, frame = set(), error.__traceback__
    while frame is not None:
        names.add(frame.tb_frame.f_code.co_name)
        frame = frame.tb_next
    return names


def storage() -> Any:
    return torch.arange(3, dtype=torch.uint8, device="jax").untyped_storage()


@need("torch.UntypedStorage.nbytes", "torch.UntypedStorage.__len__")
def storages_know_their_size() -> bool:
    return (storage().nbytes(), storage().size(), len(storage())) == (3, 3, 3)


@need("torch.UntypedStorage.data_ptr")
def storages_have_addresses() -> bool:
    return storage().data_ptr() != 0


@need("torch.UntypedStorage.resize_")
def storages_are_resized() -> bool:
    memory = ones(3).untyped_storage()
    memory.resize_(4)
    return memory.resizable() and memory.nbytes() == 4


@need("torch.UntypedStorage.cpu", "torch.UntypedStorage.__getitem__")
def storages_are_read() -> bool:
    return (storage().cpu().tolist(), storage()[2]) == ([0, 1, 2], 2)


@need("torch.UntypedStorage.tolist")
def lists_are_copied_at_once() -> bool:
    with unittest.mock.patch.object(transfer, "host_copy", wraps=transfer.host_copy) as copy:
        return storage().tolist() == [0, 1, 2] and copy.call_count == 1


@need("torch.UntypedStorage.copy_")
def storages_are_copied_to_the_host() -> bool:
    host = torch.UntypedStorage(3)
    host.copy_(storage(), non_blocking=True)
    return host.tolist() == [0, 1, 2]


@need("torch.UntypedStorage._write_file", "torch.UntypedStorage._set_from_file")
def storages_are_written_and_read() -> bool:
    with tempfile.TemporaryFile() as file:
        storage()._write_file(file, True, True, 1)
        file.seek(0)
        new = torch.zeros(3, dtype=torch.uint8, device="jax").untyped_storage()
        new._set_from_file(file, 0, True, 1)
        return new.tolist() == [0, 1, 2]


for _name, _take in {
    "torch.Tensor.__dlpack__": jnp.from_dlpack,
    "torch.Tensor.__dlpack_device__": jnp.from_dlpack,
    "torch.to_dlpack": lambda x: torch.from_dlpack(torch.to_dlpack(x)),
    "torch.utils.dlpack.to_dlpack": lambda x: torch.from_dlpack(dlpack.to_dlpack(x)),
    "torch.from_dlpack": lambda x: torch.from_dlpack(x) * x,
    "torch.utils.dlpack.from_dlpack": lambda x: dlpack.from_dlpack(x) * x,
}.items():
    need(_name)(lambda take=_take: take(ones(2)).tolist() == [1, 1])  # type: ignore[misc]


# --- torch.compile, autocast, processes -----------------------------------------------------------


@need("torch.clear_autocast_cache")
def casts_of_weights_are_dropped() -> bool:
    weight = ones(2, 2).requires_grad_()
    torch.set_autocast_enabled("jax", True)
    try:
        ones(2, 2) @ weight
        assert autocast._casts.found
        torch.clear_autocast_cache()
        return not autocast._casts.found
    finally:
        torch.set_autocast_enabled("jax", False)
        autocast.clear_cache()


@need("torch._TorchCompileInductorWrapper.__call__")
def compile_needs_no_backend_named() -> bool:
    torch._dynamo.reset()
    return torch.compile(lambda: torch.arange(3, device="jax") * 2)().tolist() == [0, 2, 4]


@need("multiprocessing.reduction.ForkingPickler.register")
def tensors_go_to_processes() -> bool:
    sent = multiprocessing.reduction.ForkingPickler.dumps(ones(2))
    return on_jax(pickle.loads(sent))


@need("torch.distributed.distributed_c10d.BackendConfig.__init__")
def a_process_group_needs_no_backend_named() -> bool:
    config = torch.distributed.distributed_c10d.BackendConfig("undefined")
    return config.device_backend_map == {"cpu": "gloo"}


@need("torch.distributed.distributed_c10d.Backend.register_backend")
def the_device_has_a_backend() -> bool:
    return torch.distributed.get_default_backend_for_device("jax") == "jax"


@need("torch.distributed.device_mesh.init_device_mesh")
def a_mesh_makes_a_group_of_the_device() -> bool:
    dist = torch.distributed
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with unittest.mock.patch.dict(os.environ, ranks):
        try:
            mesh = dist.device_mesh.init_device_mesh("jax", (1,))
            return dist.get_backend(mesh.get_group()) == "jax"
        finally:
            dist.destroy_process_group()


@need("torch.nn.parallel.DistributedDataParallel.__init__")
def ddp_looks_for_unused_parameters() -> bool:
    dist = torch.distributed
    model, used = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}).to("jax"), ["a"]
    model.forward = lambda x: model[used[0]](x)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("jax", init_method=f"file://{folder}/f", rank=0, world_size=1)
        try:
            ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
            ddp(ones(1, 2)).sum().backward()
            return model["a"].weight.grad is not None and model["b"].weight.grad is None
        finally:
            dist.destroy_process_group()
            backward.AROUND.clear()


@need("torch.nn.parallel.data_parallel._get_available_device_type")
def models_on_the_cpu_stay_there() -> bool:
    return nn.DataParallel(nn.Linear(1, 1))(torch.ones(1, 1)).device.type == "cpu"


# --- checkpoints ----------------------------------------------------------------------------------

_DCP = "torch.distributed.checkpoint"
_HALVES = unittest.mock.patch.object(  # as of a tensor of four elements over two devices
    parts, "boxes", lambda tensor: [((0,), (2,)), ((2,), (2,))]
)


def saved(state: dict[str, Any], folder: str) -> Any:
    """The metadata of a checkpoint."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dcp.save(state, checkpoint_id=folder)
        except dcp.CheckpointException as error:  # no Exception
            raise RuntimeError(str(error)) from error


@need(
    f"{_DCP}.default_planner._create_write_items",
    f"{_DCP}.default_planner.DefaultSavePlanner.resolve_data",
)
def tensors_are_saved_in_parts() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        with _HALVES:
            metadata = saved({"x": torch.arange(4.0).to("jax")}, folder)
        found = {"x": torch.zeros(4)}
        dcp.load(found, checkpoint_id=folder)
        chunks = metadata.state_dict_metadata["x"].chunks
        return len(chunks) == 2 and found["x"].tolist() == [0, 1, 2, 3]


@need(f"{_DCP}.hf_storage.HuggingFaceStorageWriter.write_data")
def safetensors_files_hold_whole_tensors() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        writer = dcp.HuggingFaceStorageWriter(folder)
        with _HALVES, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save({"x": torch.arange(4.0).to("jax")}, storage_writer=writer)
        (file,) = pathlib.Path(folder).glob("*.safetensors")
        return safetensors.torch.load_file(file)["x"].tolist() == [0, 1, 2, 3]


class _Loads:
    """Loads the last checkpoint when a new one is about to be written over it."""

    folder, found = "", 0.0

    def __reduce__(self) -> Any:
        state = {"x": torch.zeros(4)}
        dcp.load(state, checkpoint_id=self.folder)
        _Loads.found = state["x"].sum().item()
        return int, ()


@need(f"{_DCP}.filesystem._FileSystemWriter.write_data")
def a_checkpoint_is_there_while_it_is_written_anew() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        saved({"x": ones(4)}, folder)
        _Loads.folder, _Loads.found = folder, 0.0
        saved({"x": ones(4) * 2, "y": _Loads()}, folder)
        return _Loads.found == 4


@need(f"{_DCP}.filesystem._FileSystemWriter.finish")
def metadata_is_there_at_every_moment() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        saved({"x": ones(4)}, folder)
        with unittest.mock.patch.object(dcp.filesystem.FileSystem, "rm_file") as removed:
            saved({"x": ones(4)}, folder)
        return not removed.called


@need(f"{_DCP}._async_process_executor._ProcessBasedAsyncCheckpointExecutor.execute_save")
def a_process_that_saves_is_told_of_the_device() -> bool:
    executors, given = dcp._async_process_executor, unittest.mock.Mock()
    with unittest.mock.patch.object(executors, "_ProcessGroupInitInfo"):
        execute = executors._ProcessBasedAsyncCheckpointExecutor.execute_save
        execute(given, {}, checkpoint_id=tempfile.gettempdir())
    return checkpoint_folders.is_marked(given._executor.submit.call_args.kwargs["storage_writer"])


# --- after an import ------------------------------------------------------------------------------


@need("safetensors.safe_open")
def safetensors_are_opened_on_the_device() -> bool:
    with a_file() as path, safetensors.safe_open(path, "pt", device="jax") as file:
        return on_jax(file.get_tensor("a"))


@contextlib.contextmanager
def a_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        safetensors.torch.save_file({"a": torch.ones(2)}, f"{folder}/a.safetensors")
        yield f"{folder}/a.safetensors"


STEPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cond.cond_op": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "map.map_impl": lambda x: map_(lambda row: row * 2, x),
    "scan.scan_op": lambda x: scan(lambda c, row: (c + row, c * row), x[0], x)[1],
    "while_loop.while_loop_op": lambda x: torch.while_loop(
        lambda y: y.sum() < 100, lambda y: (y * 2,), (x,)
    )[0],
}


def control_flow_is_compiled(step: Callable[[torch.Tensor], Any]) -> bool:
    """Under a trace each operator becomes JAX's own, where PyTorch's looks at values or unrolls."""
    text = torch_jax.lower(step, ones(3, 2)).as_text()
    return "stablehlo.case" in text or "stablehlo.while" in text


for _name, _step in STEPS.items():
    need(f"torch._higher_order_ops.{_name}")(  # type: ignore[misc]
        lambda step=_step: control_flow_is_compiled(step)
    )


@need("torch._higher_order_ops.utils._hop_compile_and_call")
def branches_are_trained_in_compiled_functions() -> bool:
    layer = nn.Linear(2, 2).to("jax")

    def step(x: torch.Tensor) -> torch.Tensor | None:
        loss = torch.cond(x.sum() > 0, layer, torch.cos, (x,)).sum()
        layer.zero_grad()
        loss.backward()
        return layer.bias.grad

    torch._dynamo.reset()
    with unittest.mock.patch.object(Watch, "refuse_doubt"):  # Dynamo's own code is not understood
        return torch_jax.jit(step)(ones(3, 2)).tolist() == [3, 3]


@need("torch.utils.checkpoint.checkpoint")
def checkpoints_are_kept_apart() -> bool:
    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        torch.utils.checkpoint.checkpoint(
            lambda x: x.sin().cos(), x, use_reentrant=False
        ).sum().backward()
        return x.grad  # type: ignore[return-value]

    return "optimization_barrier" in torch_jax.lower(step, ones(3)).as_text()


@need("torch.nn.attention.flex_attention._validate_device")
def flex_attention_takes_the_device() -> bool:
    return flex_attention(*(ones(1, 1, 4, 8) for _ in range(3))).shape == (1, 1, 4, 8)


@need("torch._dynamo.variables.builder.VariableBuilder._wrap")
def generators_break_a_graph() -> bool:
    torch._dynamo.reset()
    generator = torch.Generator(device="jax").manual_seed(0)
    draw = torch.compile(
        lambda x: x + torch.rand(2, device="jax", generator=generator), backend="jax"
    )
    return draw(ones(2)).shape == (2,)


@need("transformers.utils.import_utils.is_jax_jitting")
def models_know_that_they_are_traced() -> bool:
    found = []

    def step(x: torch.Tensor) -> torch.Tensor:
        found.append(import_utils.is_jax_jitting(x + 1))
        return x

    torch_jax.jit(step)(ones(2))
    return found == [True] and not import_utils.is_jax_jitting(ones(2))


@need("torch.ops.transformers")
def experts_are_served_by_the_table() -> bool:
    mm = torch.ops.transformers.grouped_mm_fallback
    ends = torch.tensor([1, 4], dtype=torch.int32, device="jax")
    step = torch_jax.jit(lambda x, weight: mm(x, weight, offs=ends))
    return step(ones(4, 2), ones(2, 2, 3)).shape == (4, 3)


@need("torch.nested._internal.ops.jagged_scaled_dot_product_attention")
def jagged_tensors_attend() -> bool:
    rows = [ones(2, 2, 2), ones(1, 2, 2)]
    heads = torch.nested.as_nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(heads, heads, heads).values().shape[1] == 3


# --- torch_jax.jit --------------------------------------------------------------------------------


@need("torch.autograd.backward")
def backward_passes_are_not_differentiated() -> bool:
    weight = ones(2).requires_grad_()

    def step() -> torch.Tensor:
        loss = (weight * 2).sin().sum()
        loss.backward()
        return loss

    return torch_jax.jit(step)().shape == ()


@need("torch.autograd.grad")
def gradients_are_not_differentiated() -> bool:
    weight = ones(2).requires_grad_()

    def step() -> torch.Tensor:
        loss = (weight * 2).sin().sum()
        torch.autograd.grad(loss, weight)
        return loss

    return torch_jax.jit(step)().shape == ()


@need("torch.manual_seed")
def seeds_are_set_by_each_call() -> bool:
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        return x + 1, torch.rand(2)

    step = torch_jax.jit(draw)
    drawn = [step(ones(2))[1].tolist() for _ in range(3)]
    return drawn[0] == drawn[1] == drawn[2]


@need("torch.seed")
def seeds_of_the_system_are_refused() -> bool:
    try:
        torch_jax.jit(lambda x: x + torch.seed() % 2)(ones(2))
    except torch_jax.NotTraceableError:
        return True
    return False


def _install(handler: Any) -> Iterator[Any]:
    """What Python has for a signal, and what it says that it has."""
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield signal.getsignal.__wrapped__(signal.SIGTERM)  # type: ignore[attr-defined]
        yield signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@need("signal.signal")
def handlers_may_be_called_later() -> bool:
    has, _ = _install(print)
    return has is not print


@need("signal.getsignal")
def handlers_are_what_was_given() -> bool:
    _, says = _install(print)
    return says is print


@need("torch.get_rng_state", "torch.set_rng_state")
def states_of_the_host_are_put_back() -> bool:
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.get_rng_state()
        drawn = torch.rand(2)
        torch.set_rng_state(state)
        return x + 1, drawn

    step = torch_jax.jit(draw)
    drawn = [step(ones(2))[1].tolist() for _ in range(3)]
    return drawn[0] == drawn[1] == drawn[2]


@need("torch.nn.Module.zero_grad")
def modules_drop_gradients_at_each_call() -> bool:
    return _drops_gradients(lambda layer: layer)


@need("torch.optim.Optimizer.zero_grad")
def optimizers_drop_gradients_at_each_call() -> bool:
    return _drops_gradients(lambda layer: torch.optim.SGD(layer.parameters(), 0.1))


def _drops_gradients(owner: Callable[[nn.Module], Any]) -> bool:
    layer = nn.Linear(2, 2).to("jax")
    zero = owner(layer)

    def step(x: torch.Tensor) -> None:
        zero.zero_grad()
        layer(x).sum().backward()

    return _is_traced_once(step) and layer.bias.grad.tolist() == [3, 3]


def _is_traced_once(
    step: Callable[[torch.Tensor], Any], between: Callable[[], Any] = lambda: None
) -> bool:
    """Whether later calls of a compiled step, with ``between`` in between, are the same program."""
    compiled_step = torch_jax.jit(step)
    for _ in range(4):
        compiled_step(ones(3, 2))
        between()
    return compiled_step.explain().traces == 1


@need("torch.optim._adafactor.max", "torch.optim._adafactor.min")
def adafactor_is_traced_once() -> bool:
    layer = nn.Linear(2, 2).to("jax")
    optimizer = torch.optim.Adafactor(layer.parameters(), lr=0.9)  # min(0.9, 1 / sqrt(step))

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

    return _is_traced_once(step)


@need(
    "torch.amp.grad_scaler.GradScaler.scale",
    "torch.amp.grad_scaler.GradScaler._maybe_opt_step",
    "torch.amp.grad_scaler.GradScaler._unscale_grads_",
)
def scaled_steps_are_traced_once() -> bool:
    layer = nn.Linear(2, 2).to("jax")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scaler = torch.amp.GradScaler("jax")

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(layer(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    rates = optimizer.param_groups[0]
    return _is_traced_once(step, lambda: rates.update(lr=rates["lr"] * 0.9))


# --- the tests ------------------------------------------------------------------------------------

# What ends the process, or hangs on the order of imports: programs of their own, in which the first
# line that is empty is where the original comes back.
ELSEWHERE = {
    "torch.UntypedStorage.__new__": """
import torch
x = torch.ones(1, device="jax")

torch.UntypedStorage(3, device="jax").nbytes()
""",
    "torch.autograd.Variable._execution_engine": """
import torch
x = torch.ones(2, device="jax", requires_grad=True)

x.register_hook(lambda gradient: 1 / 0)
try:
    x.sum().backward()
except ZeroDivisionError:
    pass
""",
    "safetensors.torch.safe_open": """
import torch, safetensors.torch, tempfile
import torch_jax

with tempfile.TemporaryDirectory() as folder:
    safetensors.torch.save_file({"a": torch.ones(2)}, f"{folder}/a.safetensors")
    assert safetensors.torch.load_file(f"{folder}/a.safetensors", device="jax")["a"].sum() == 2
""",
}
# What cannot be taken away for a block: Dynamo has no way to, and schedulers, of which programs
# define new classes, are looked for at each trace. tests/graphs, tests/capture show them at work.
FOR_GOOD = {
    "torch.optim.lr_scheduler.LRScheduler",
    "torch._dynamo.config",
    "torch._dynamo.device_interface.register_interface_for_device",
    "torch._dynamo.trace_rules.add",
}


@pytest.fixture(scope="module", autouse=True)
def all_patches():
    torch_jax.jit(torch.sin)(ones(1))
    torch._dynamo.reset()  # it is imported now


def fails(works: Works) -> bool:
    try:
        return not works()
    except Exception:
        return True
    finally:  # frames of the error hold PyTorch's guards, which would stay in force
        gc.collect()


def test_every_row_is_in_place_and_tested():
    assert patching.in_place() == set(patching.PATCHES)
    assert set(patching.PATCHES) == NEEDS.keys() | ELSEWHERE.keys() | FOR_GOOD
    for row in patching.PATCHES.values():
        assert row.why and row.when and row.since, row


@pytest.mark.parametrize("target", NEEDS)
def test_a_replacement_is_needed(target):
    assert NEEDS[target]()
    with patching.without(target):
        assert fails(NEEDS[target]), f"{target} works without its replacement: drop it"
    assert NEEDS[target]()


@pytest.mark.parametrize("target", ELSEWHERE)
@pytest.mark.slow
def test_a_program_fails_without_a_replacement(target):
    program = ELSEWHERE[target].strip() + "\n"
    without = f"""
from torch_jax.core import backward, patching
block = patching.without({target!r})
block.__enter__()  # an object that nobody holds would leave the block at once
"""
    assert runs(program)
    assert not runs(program.replace("\n\n", without, 1))


def runs(program: str) -> bool:
    """Whether a new process ends well; torch_jax is imported where the program says."""
    by_hand = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if "import torch_jax" in program else {}
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | by_hand, timeout=120)
    return done.returncode == 0
