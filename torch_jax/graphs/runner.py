"""Runs fx graphs on tensors of device jax, with the kernels that serve it eagerly.

Graphs come from ``make_fx``, ``torch.export``, ``torch.fx.symbolic_trace`` or AOTAutograd, most of
them made of a model on the CPU: every device they name is ``jax`` here. Below autograd there is
nothing but the kernels; under a JAX trace they inline into the program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from torch_jax._private import pytorch
from torch_jax.core import errors, tracers
from torch_jax.core.active import ACTIVE
from torch_jax.dispatch import control_flow, ladder
from torch_jax.memory import generators, storage, transfer

_DEVICE = torch.device(pytorch.DEVICE_TYPE)


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return every tensor that a graph module and its inner graphs hold, by qualified name.

    >>> sorted(tensors_of(fx.symbolic_trace(torch.nn.Linear(2, 1))))
    ['bias', 'weight']
    """
    found: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    found |= dict(module.named_buffers(remove_duplicate=False))
    for prefix, part in module.named_modules():
        nodes = part.graph.nodes if isinstance(part, fx.GraphModule) else ()
        for name in dict.fromkeys(node.target for node in nodes if node.op == "get_attr"):
            value = functools.reduce(getattr, name.split("."), part)
            if isinstance(value, torch.Tensor):
                found.setdefault(f"{prefix}.{name}".lstrip("."), value)
    return found


def first_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return for each name the first one of the same tensor, which differs where weights are tied.

    >>> x = torch.ones(1)
    >>> first_names({"a": x, "b": x})
    {'a': 'a', 'b': 'a'}
    """
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


class Runner(fx.Interpreter):
    """Runs a graph on jax tensors; ``tensors`` are those that it holds, by qualified name."""

    def __init__(self, module: Any, tensors: Mapping[str, torch.Tensor], prefix: str = ""):
        super().__init__(module)
        self.tensors, self.prefix = tensors, prefix

    def _set_current_node(self, node: fx.Node) -> Any:
        """Note no node: the notes of fx are one dict for all threads, and another may trace."""
        return nullcontext()

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a tensor, or a graph as a function."""
        name = f"{self.prefix}{target}"
        if name in self.tensors:
            return self.tensors[name]
        value = self.fetch_attr(target)
        if isinstance(value, fx.GraphModule):
            return Runner(value, self.tensors, f"{name}.").run
        if isinstance(value, torch.Tensor) and not storage.is_jax(value):
            return transfer.to_device(value)
        return value

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return the results: fx has lists of its own, which ``vmap`` does not flatten."""
        result = super().output(target, args, kwargs)
        return list(result) if isinstance(result, list) else result

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a module that the graph takes whole, with its tensors replaced."""
        part, start = self.fetch_attr(target), f"{self.prefix}{target}."
        if isinstance(part, fx.GraphModule):
            return Runner(part, self.tensors, start).run(*args, **kwargs)
        held = {n.removeprefix(start): t for n, t in self.tensors.items() if n.startswith(start)}
        return torch.func.functional_call(part, held, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in ("cpu", "cuda"):  # the devices of the model that the graph was made of
            return args[0]
        args, kwargs = _on_device(args, kwargs)
        if target == "to":
            args = tuple(_DEVICE if isinstance(a, str) else a for a in args)
        return super().call_method(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator, or a function of PyTorch's or of Python's."""
        args, kwargs = _on_device(args, kwargs)
        if isinstance(target, OpOverload):
            # The graph may have been made with other strides: PyTorch's meta functions give
            # convolutions on this device contiguous results.
            target = _RESHAPE if target is _VIEW else target
            if kwargs.get("device") is None and _takes_device(target):
                kwargs["device"] = _DEVICE
        elif isinstance(target, HigherOrderOperator):
            target = _HIGHER_ORDER.get(target.name(), target)
        elif target is torch.amp.autocast_mode._enter_autocast:
            args = (pytorch.DEVICE_TYPE, *args[1:])
        try:
            return super().call_function(target, args, kwargs)
        except tracers.DataDependentError as error:
            if isinstance(target, OpOverload) and ladder.rung(target) in ("cpu", "none"):
                raise errors.not_found(target, args, kwargs, _OUTSIDE) from error
            raise


_OUTSIDE = "call it outside of the graph, by torch.compiler.disable: there it runs on the CPU"
_VIEW, _RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default


def _on_device(args: Any, kwargs: Any) -> tuple[tuple, dict[str, Any]]:
    """Return arguments with every device but ``meta`` replaced."""
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device(kwargs["device"])}
    return tuple(map(_replaced, args)), {name: _replaced(v) for name, v in kwargs.items()}


def _replaced(value: Any) -> Any:
    return _DEVICE if isinstance(value, torch.device) and value.type != "meta" else value


@functools.cache
def _takes_device(op: OpOverload) -> bool:
    """Return whether an operator is a factory, which takes no tensor and makes one."""
    arguments = op._schema.arguments
    tensors = any("Tensor" in str(a.type) for a in arguments)
    return not tensors and any(a.name == "device" for a in arguments)


def _checkpoint(function: Callable[..., Any], *operands: Any, **_options: Any) -> Any:
    return control_flow.checkpoint(function, operands)


def _with_autocast(_device, dtype, enabled, cache, function, *operands: Any, **kwargs: Any) -> Any:
    with torch.autocast(pytorch.DEVICE_TYPE, dtype, enabled, cache):
        return function(*operands, **kwargs)


def _effects(token: Any, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = op(*args, **kwargs)
    return (token, *result) if isinstance(result, tuple) else (token, result)


def _save_draw(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the key that an operator draws with, and its result."""
    words = torch.ops.torch_jax.draw_key(torch.empty(0, device=_DEVICE))
    return words, _repeat_draw(words, op, *args, **kwargs)


def _repeat_draw(words: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if ACTIVE.observer is not None:
        ACTIVE.observer.see(words)  # which no operator takes as an argument
    with generators.drawn(storage.held_by(words)):
        return op(*args, **kwargs)


_HIGHER_ORDER: dict[str, Callable[..., Any]] = {
    "tag_activation_checkpoint": _checkpoint,
    "wrap_activation_checkpoint": _checkpoint,
    "wrap": lambda function, *operands, **kwargs: function(*operands, **kwargs),
    "strict_mode": lambda function, operands: function(*operands),
    "invoke_subgraph": lambda function, _identifier, *operands: function(*operands),
    "wrap_with_set_grad_enabled": lambda _enabled, function, *operands: function(*operands),
    "wrap_with_autocast": _with_autocast,
    "hints_wrapper": lambda function, args, kwargs, _hints: function(*args, **kwargs),
    "with_effects": _effects,
    "run_and_save_rng_state": _save_draw,
    "run_with_rng_state": _repeat_draw,
}
