"""Proofs that checkpoints, and modules patched after their import, need replacements."""

import contextlib
import pathlib
import tempfile
import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import torch.nested._internal.ops
import torch.utils.checkpoint
import transformers.integrations.moe  # noqa: F401, its operators exist once it is imported
from torch import nn
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import flex_attention
from transformers.utils import import_utils

import torch_jax
from tests.patches.needs import need, on_jax, ones
from torch_jax.compat import torchax  # noqa: F401, which adds methods to tensors
from torch_jax.memory import parts

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


@need(f"{_DCP}.filesystem.FileSystemReader._slice_file")
def damaged_pieces_are_not_loaded() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"a": ones(64)}, checkpoint_id=folder)
        (file,) = pathlib.Path(folder).glob("*.distcp")
        saved = bytearray(file.read_bytes())
        saved[saved.index(torch.ones(64).numpy().tobytes())] ^= 1
        file.write_bytes(saved)
        try:
            dcp.load({"a": torch.zeros(64)}, checkpoint_id=folder)
        except dcp.CheckpointException as error:
            return "checksum" in str(error)
    return False


@need(f"{_DCP}.filesystem._FileSystemWriter.finish")
def metadata_is_there_at_every_moment() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        saved({"x": ones(4)}, folder)
        with unittest.mock.patch.object(dcp.filesystem.FileSystem, "rm_file") as removed:
            saved({"x": ones(4)}, folder)
        return not removed.called


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
    """In a program each operator becomes JAX's own, where PyTorch's looks at values or unrolls."""
    function = jax.jit(torch_jax.to_jax_function(torch.no_grad()(step)))
    text = function.lower(jnp.ones((3, 2), jnp.float32)).as_text()
    return "stablehlo.case" in text or "stablehlo.while" in text


for _name, _step in STEPS.items():
    need(f"torch._higher_order_ops.{_name}")(  # type: ignore[misc]
        lambda step=_step: control_flow_is_compiled(step)
    )


@need("torch._higher_order_ops.utils.setup_compilation_env")
def branches_are_trained_in_functions_of_jax() -> bool:
    layer = nn.Linear(2, 2).to("jax")

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, layer, torch.cos, (x,)).sum()

    torch._dynamo.reset()
    gradient = jax.grad(torch_jax.to_jax_function(step, derivatives="torch"))
    return gradient(jnp.ones((3, 2), jnp.float32)).shape == (3, 2)


@need("torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS")
def functions_are_taken_under_autocast() -> bool:
    torch._dynamo.reset()
    x = ones(1, 1, 2, 2)
    with torch.autocast("jax", torch.bfloat16):
        product = torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x + 1, (x,))
        return flex_attention(x, x, x).dtype == product.dtype == torch.bfloat16


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


@need("torch._dynamo.variables.builder.VariableBuilder._type_dispatch")
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
    step = torch_jax.jit(lambda x, weight: mm(x, weight, offs=ends), pure=True)
    return step(ones(4, 2), ones(2, 2, 3)).shape == (4, 3) and not step.explain().notes


@need("torch.nested._internal.ops.jagged_scaled_dot_product_attention")
def jagged_tensors_attend() -> bool:
    rows = [ones(2, 2, 2), ones(1, 2, 2)]
    heads = torch.nested.as_nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(heads, heads, heads).values().shape[1] == 3


# --- JAX ------------------------------------------------------------------------------------------


@need("torch.Tensor")
def jax_numpy_takes_tensors() -> bool:
    x = ones(2)
    return jnp.asarray(x) is torch_jax.to_jax(x)


# --- torchax --------------------------------------------------------------------------------------


@need("torch.Tensor.jax")
def tensors_have_the_methods_of_torchax() -> bool:
    return ones(2).apply_jax(jnp.sin).jax().shape == (2,) and on_jax(torch.ones(1).jax())
