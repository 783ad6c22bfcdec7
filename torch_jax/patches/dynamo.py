"""Dynamo: the interface of the device, the files it looks through, and its constants."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_jax._private import dynamo, pytorch
from torch_jax.core import dynamo_constants
from torch_jax.core.patching import around, patch
from torch_jax.eager.meta import is_channels_last
from torch_jax.environment import callables
from torch_jax.memory import generators

# Modules of functions that replace PyTorch's own: Dynamo looks through them to the originals.
_SEEN_THROUGH = frozenset(
    f"torch_jax.{name}"
    for name in """
        config core.scopes environment.callables environment.cuda_names environment.cuda_tensors
        environment.environment environment.redirects environment.regions interop.from_jax
        patches.higher_order patches.imports patches.modules patches.safetensors
        patches.transformers
    """.split()
)


@patch("torch._dynamo.config", "torch._dynamo", is_registration=True)
def _add_constants(_config: Any) -> None:
    """Dynamo cannot trace context variables: their values become constants with guards."""
    dynamo_constants.tell_dynamo()


@patch(
    "torch._dynamo.device_interface.register_interface_for_device",
    "torch._dynamo.device_interface",
    is_registration=True,
)
def _add_device_interface(_register: Any) -> None:
    """Dynamo asks about a device through an interface, which out-of-tree devices do not have."""
    from torch_jax.graphs import device_interface

    device_interface.register(sys.modules["torch._dynamo.device_interface"])


@patch("torch._dynamo.trace_rules.add", "torch._dynamo.trace_rules", is_registration=True)
def _hide(add: Any) -> None:
    """Dynamo compiles the functions that are called after a graph break: it must skip kernels."""
    for name in _hidden(sys.modules["torch_jax"]):
        add(name)
    add("jax")


@patch("torch._dynamo.trace_rules.get_torch_obj_rule_map", "torch._dynamo")
def _name_originals(original: Any) -> Callable[[], dict[Any, Any]]:
    """Dynamo finds rules by the function: one that an environment has replaced has none.

    The original has the rule, also where Dynamo makes its rules once more, as after processes have
    met. Where the replacement's result counts as a constant, so does the original's.
    """

    @functools.cache
    def rules() -> dict[Any, Any]:
        for table in dynamo.tables_of_constants():
            table |= {old: None for new, old in callables.STAND_INS.items() if new in table}
        found = inspect.unwrap(original)().items()  # not those that it keeps
        return {callables.STAND_INS.get(function, function): rule for function, rule in found}

    return rules


def _hidden(package: ModuleType) -> Iterator[str]:
    """Yield a package's modules that Dynamo must not trace; a folder, if all of it is meant."""
    for part in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if part.ispkg and any(name.startswith(f"{part.name}.") for name in _SEEN_THROUGH):
            yield from _hidden(importlib.import_module(part.name))
        elif part.name not in _SEEN_THROUGH:
            yield part.name


@around("torch._C._conv_determine_backend_memory_format", "torch._dynamo")
def _patch_convolutions(original: Any, input: Any, weight: Any, backend: Any) -> Any:
    """Keep channels_last in fake tensors, which took a result on this device for contiguous."""
    is_plain = not any(is_channels_last(one.shape, one.stride()) for one in (input, weight))
    is_plain |= (input.dim(), input.dtype) == (5, torch.float64)  # which no library keeps
    if is_plain or input.device.type != pytorch.DEVICE_TYPE:
        return original(input, weight, backend)
    return torch.channels_last if input.dim() == 4 else torch.channels_last_3d


_BUILDER = "torch._dynamo.variables.builder"


@patch(f"{_BUILDER}.VariableBuilder._type_dispatch", _BUILDER, is_registration=True)
def _break_at_generators(handlers: Any) -> Callable[[], None]:
    """Dynamo knows generators of PyTorch by their exact type; they break a graph, as on CPUs."""
    kind: Any = generators.JaxGenerator
    handlers()[kind] = handlers.__self__.wrap_user_defined
    return lambda: handlers().pop(kind)


@around("torch._TorchCompileInductorWrapper.__call__", "torch._dynamo")
def _patch_default_backend(original: Any, self: Any, graph: Any, inputs: Any, **kwargs: Any) -> Any:
    """``torch.compile`` without a backend takes inductor, which does not know the device."""
    held = (*graph.parameters(), *graph.buffers())
    made = [node.meta.get("example_value") for node in graph.graph.nodes]
    if not any(
        isinstance(value, torch.Tensor) and value.device.type == pytorch.DEVICE_TYPE
        for value in pytree.tree_leaves([*inputs, *held, *made])
    ):
        return original(self, graph, inputs, **kwargs)
    from torch_jax.graphs import backend

    return backend.in_place_of_inductor(graph, inputs)
