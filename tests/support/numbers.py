"""Calls of operators that take Python numbers, made of their schemas: one call per number tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torch_jax.dispatch import ladder
from torch_jax.dispatch.registration import served_names
from torch_jax.eager import twins, variants
from torch_jax.eager.kernel import Kernel

ODD = (-1, 0, float("nan"), float("inf"), 1e30, 300, 0.5, True, 1j, 2**62, -1e9)
SHAPES = ((2, 3), (3,), (2, 3, 3))
VALID = (0.5, 1, 2, True)

# Operators that cannot be called with arbitrary tensors: their CPU kernels trust the shapes or the
# values of what other operators give them, or their numbers say how much memory they take.
_TRUSTING = frozenset(
    """
    arange range linspace logspace kaiser_window linalg_lstsq segment_reduce histogram
    histc _add_relu _pdist_forward _pdist_backward _cdist_forward _cdist_backward native_dropout
    native_dropout_backward multi_margin_loss_backward smooth_l1_loss_backward _amp_update_scale
    scalar_tensor _masked_scale
    """.split()
)
_WHOLE = {"dim": 0, "reduction": 1, "pad": [1, 1], "size": [2, 3]}
_INDICES = frozenset({"index", "indices", "target"})
_CHOICES = {"reduce": "add", "rounding_mode": "floor"}


def takes_number(argument: Any) -> bool:
    """Whether an argument of a schema is a Python number."""
    return any(name in str(argument.real_type) for name in ("number", "float"))


def operators() -> Iterator[Any]:
    """The overloads of the table, and in-place ones derived from it, that take numbers."""
    for op in map(variants.overload, served_names()):
        packet = op._schema.name.removeprefix("aten::")
        arguments = op._schema.arguments
        written = any(a.kwarg_only and a.alias_info and a.alias_info.is_write for a in arguments)
        trusting = packet.removesuffix("_") in _TRUSTING or "batch_norm" in packet
        listed = any("List[Tensor]" in str(a.real_type) for a in arguments)
        if written or trusting or listed or not twins.can_be_small(op):
            continue
        if any(map(takes_number, arguments)) and ladder.own(op) and isinstance(_kernel(op), Kernel):
            yield op


def _kernel(op: Any) -> Any:
    return ladder.kernel_in_table(op)


def numbers_of(op: Any) -> list[str]:
    """The names of an overload's numbers."""
    return [a.name for a in op._schema.arguments if takes_number(a)]


def arguments(op: Any, shape: tuple, dtype: torch.dtype, numbers: dict[str, Any], device: str):
    """Positional and named arguments; ``numbers`` by their names."""
    positional, named = [], {}
    for argument in op._schema.arguments:
        if takes_number(argument):
            value = numbers[argument.name]
        elif argument.has_default_value() or str(argument.real_type).startswith("Optional"):
            if argument.kwarg_only:
                continue
            value = argument.default_value
        else:
            value = _value(argument, shape, dtype)
        if isinstance(value, torch.Tensor):
            value = value.to(device)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    names = twins.names_of(op)
    if "device" in names:
        named |= {"device": torch.device(device), "dtype": dtype}
    return positional, named


def _value(argument: Any, shape: tuple, dtype: torch.dtype) -> Any:
    kind, name = str(argument.real_type), argument.name
    if kind == "Tensor":
        if name in _INDICES:
            return torch.zeros(shape[:1], dtype=torch.int64)
        count = torch.arange(torch.Size(shape).numel()).view(shape)
        if name == "mask":
            return count % 2 == 0
        fraction = dtype.is_floating_point or dtype.is_complex
        return (count / 4 - 0.75 if fraction else count + 1).to(dtype)
    if kind == "bool":
        return name == "training"
    return _WHOLE.get(name, _CHOICES.get(name, 1))


def outcome(op: Any, shape: tuple, dtype: torch.dtype, numbers: dict, device: str) -> Any:
    """The result of a call on the CPU, or the type of what it raises."""
    positional, named = arguments(op, shape, dtype, numbers, device)
    try:
        result = op(*positional, **named)
    except Exception as error:
        return type(error)
    results = result if isinstance(result, list | tuple) else [result]
    return [r.cpu() for r in results]


def valid_call(op: Any, dtype: torch.dtype) -> tuple[tuple, dict[str, Any]] | None:
    """A shape and numbers that the CPU takes, None where it takes none of this dtype."""
    for shape in SHAPES:
        for number in VALID:
            numbers = dict.fromkeys(numbers_of(op), number)
            if isinstance(outcome(op, shape, dtype, numbers, "cpu"), list):
                return shape, numbers
    return None


def odd_calls(op: Any, numbers: dict[str, Any], dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """The numbers of a call with one of them replaced by each odd one."""
    packet = op._schema.name
    for name in numbers:
        for odd in ODD:
            if packet.startswith("aten::special_") and abs(odd) > 300:
                continue  # polynomials take as many steps on the CPU
            yield numbers | {name: odd}
