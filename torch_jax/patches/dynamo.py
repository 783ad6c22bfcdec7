"""Dynamo: what it knows of the device, sees through, and takes for constant."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_jax._private import pytorch
from torch_jax.core import dynamo_constants
from torch_jax.core.patching import patch
from torch_jax.environment import callables
from torch_jax.memory import generators

# What stands in the place of PyTorch's own callables: Dynamo looks through these to the callables.
_SEEN_THROUGH = frozenset(
    (
        "torch_jax.config",
        "torch_jax.core.scopes",
        "torch_jax.environment.callables",
        "torch_jax.environment.cuda_names",
        "torch_jax.environment.cuda_tensors",
        "torch_jax.environment.environment",
        "torch_jax.environment.redirects",
        "torch_jax.environment.regions",
        "torch_jax.interop.from_jax",
        "torch_jax.patches.higher_order",
        "torch_jax.patches.imports",
        "torch_jax.patches.safetensors",
        "torch_jax.patches.transformers",
    )
)


@patch("torch._dynamo.config", "torch._dynamo", is_registration=True)
def _tell_constants(_config: Any) -> None:
    """Context variables are closed to it: questions about them are answered once, and guarded."""
    dynamo_constants.tell_dynamo()


@patch(
    "torch._dynamo.device_interface.register_interface_for_device",
    "torch._dynamo.device_interface",
    is_registration=True,
)
def _add_device_interface(_register: Any) -> None:
    """It asks about a device through an interface, of which out-of-tree devices have none."""
    from torch_jax.graphs import device_interface

    device_interface.register(sys.modules["torch._dynamo.device_interface"])


@patch("torch._dynamo.trace_rules.add", "torch._dynamo.trace_rules", is_registration=True)
def _hide(add: Any) -> None:
    """After a graph break Dynamo compiles what is called next: kernels are no such thing."""
    for name in _hidden(sys.modules["torch_jax"]):
        add(name)
    add("jax")


@patch("torch._dynamo.trace_rules.get_torch_obj_rule_map", "torch._dynamo.trace_rules")
def _patch_rules(original: Any) -> Any:
    """Its rules are for what it finds by PyTorch's names: what an environment has put there.

    They are the original's; Dynamo looks through what stands in its place.
    """

    @functools.cache
    def rules() -> dict[Any, Any]:
        found = dict(original())
        for stand_in, replaced in list(callables.STAND_INS.items()):
            if stand_in in found:
                found[replaced] = found.pop(stand_in)
        return found

    return rules


def _hidden(package: ModuleType) -> Iterator[str]:
    """Modules of a package that Dynamo must not see into; the folder, where all of it is meant."""
    for part in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if part.ispkg and any(name.startswith(f"{part.name}.") for name in _SEEN_THROUGH):
            yield from _hidden(importlib.import_module(part.name))
        elif part.name not in _SEEN_THROUGH:
            yield part.name


@patch("torch._dynamo.variables.builder.VariableBuilder._wrap", "torch._dynamo.variables.builder")
def _patch_wrap(original: Any) -> Any:
    """Generators break a graph, as PyTorch's own do; Dynamo asks for their exact type."""

    def _wrap(self: Any, value: Any) -> Any:
        if isinstance(value, generators.JaxGenerator):
            return self.wrap_user_defined(value)
        return original(self, value)

    return _wrap


@patch("torch._TorchCompileInductorWrapper.__call__", "torch._dynamo")
def _patch_default_backend(original: Any) -> Any:
    """``torch.compile`` without a backend takes inductor, which does not know the device."""

    @functools.wraps(original)
    def call(self: Any, graph: Any, inputs: Any, **kwargs: Any) -> Any:
        if not _concerns(graph, inputs):
            return original(self, graph, inputs, **kwargs)
        from torch_jax.graphs import backend

        return backend.in_place_of_inductor(graph, inputs)

    return call


def _concerns(graph: Any, inputs: Any) -> bool:
    """Whether a graph of Dynamo's has tensors on device jax: given, held, or made in it."""
    held = (*graph.parameters(), *graph.buffers())
    made = [node.meta.get("example_value") for node in graph.graph.nodes]
    return any(
        isinstance(value, torch.Tensor) and value.device.type == pytorch.DEVICE_TYPE
        for value in pytree.tree_leaves([*inputs, *held, *made])
    )
