"""Numbers among arguments: each is checked once, as the CPU's kernels check it.

Python numbers are inputs of a compiled entry, so that a compile sees the first number only. So each
that is new to an operator, with tensors of these dtypes, is tried on the CPU's own kernel
(:mod:`torch_jax.eager.twins`), whose error is raised. A learning rate that decays would call it at
each step: so at the first float it is called with floats of all magnitudes and signs. One that
refuses none of them checks no float, up to the largest that its dtypes hold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch

from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core import errors, numbers
from torch_jax.eager import meta, twins
from torch_jax.memory.storage import tensors_in
from torch_jax.ops.registry import Lowering

Call = Callable[..., Any]

# Operators whose size depends on their numbers, all static: each compile checks them.
_SIZED = frozenset({"arange", "range"})

_PLAIN = frozenset({float, int, bool, str, type(None)})
_ORDINARY = (1, 0.5, 0, 1.0, 2, True)
_MAGNITUDES = (0.0, 1e-30, 0.25, 0.5, 1.0, 1.5, 2.0, 100.0)


def checked(op: Any, lowering: Lowering, call: Call) -> Call:
    """Wrap ``call``, which takes the arguments of ``op``, to check every new number before."""
    if not (taken := _numbers_to_check(op, lowering)):
        return call
    first = next(
        i for i, a in enumerate(op._schema.arguments) if a.name in taken or a.kwarg_only
    )  # calls with fewer arguments bring none
    infers = lowering.meta is True
    passed: dict[tuple, float] = {}  # for the key of a call without its floats, their bound

    def check(known: tuple, args: tuple, kwargs: dict[str, Any]) -> None:
        kind, given = _without_floats(known), twins.by_name(op, args, kwargs)
        bound = passed.get(kind)
        if not (bound and all(abs(value) < bound for value in _leaves(given, float))):
            _refuse(op, infers, given, bool(lowering.random and lowering.integers))
            # without elements some kernels check nothing; a trace's numbers are its guards
            if not all(map(torch.Tensor.numel, tensors_in(args))) or _leaves(given, torch.SymFloat):
                return
        if len(passed) >= ENTRIES_REMEMBERED:
            passed.clear()
        if bound is None and kind != known:
            passed[kind] = _bound(op, given)
        passed[known] = 0.0

    def checking(*args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) > first:
            known: tuple = tuple(map(type, args))
            if not kwargs and known[0] is torch.Tensor and _PLAIN.issuperset(known[1:]):
                known = args[0].dtype, known, args[1:]  # as below, for most calls
            else:
                known = (*map(_kind, args), *kwargs, *map(_kind, kwargs.values()))
            if known not in passed:
                check(known, args, kwargs)
        return call(*args, **kwargs)

    return checking


def _numbers_to_check(op: Any, lowering: Lowering) -> set[str]:
    """Return the names of an overload's numbers that its CPU kernel can check."""
    packet = op._schema.name.removeprefix("aten::").removesuffix("_")
    if (
        twins.on_cpu(op) is not op
        or packet in _SIZED
        or packet.startswith("special_")  # polynomials: as many steps as their number says
        or not twins.can_be_small(op)
    ):
        return set()
    bounds = lowering.integers if lowering.random else set()
    return {a.name for a in op._schema.arguments if takes_number(a)} - operands(op) | bounds


def operands(op: Any) -> set[str]:
    """Return the names of two operands that may be numbers, which PyTorch makes tensors of."""
    both = {"self", "other"}
    return both if both <= {a.name for a in op._schema.arguments} else set()


def takes_number(argument: Any) -> bool:
    """Return whether an argument of a schema is a number, or some, and no size."""
    return any(name in str(argument.real_type) for name in ("number", "float"))


def _kind(value: Any) -> Any:
    """Return the key of a check: the dtype of a tensor, type and value of other arguments."""
    kind = type(value)
    if kind is float or kind is int:  # first, and tensors by their type: this is at each call
        return kind, value
    if kind is torch.Tensor or isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], torch.Tensor):
            return tuple({t.dtype: None for t in value})
        return tuple(map(_kind, value))
    if isinstance(value, torch.SymFloat):
        return torch.SymFloat
    return None if isinstance(value, torch.Generator) else (kind, value)


def _without_floats(known: Any) -> Any:
    if type(known) is tuple:
        return tuple(map(_without_floats, known))
    return float if type(known) is float else known


def _leaves(given: Any, kind: Any) -> list[Any]:
    return [value for value in jax.tree.leaves(given) if isinstance(value, kind)]


def _instead(value: Any, number: Any, kind: Any) -> Any:
    """Return an argument with a number in place of each of its numbers of a kind."""
    return jax.tree.map(lambda one: number if isinstance(one, kind) else one, value)


def _bound(op: Any, given: dict[str, Any]) -> float:
    """Return the bound of the floats that an operator takes, 0 where it refuses some, or may."""
    dtypes = {tensor.dtype for tensor in tensors_in(given)}
    if not dtypes or not all(dtype.is_floating_point for dtype in dtypes):
        return 0.0
    bound = min(torch.finfo(dtype).max for dtype in dtypes) / 2
    named = twins.twins(op, given, twins.small)
    floats = {name: value for name, value in named.items() if _leaves(value, float)}
    for number in (sign * value for value in (*_MAGNITUDES, bound) for sign in (1, -1)):
        others = {name: _instead(value, number, float) for name, value in floats.items()}
        for instead in (others, *({name: other} for name, other in others.items())):
            if twins.refusal(op, named | instead) is not None:
                return 0.0
    return bound


def _refuse(op: Any, infers: bool, given: dict[str, Any], is_draw: bool) -> None:
    """Raise the CPU's error for the numbers of a call; of bounds of a draw it warns, too."""
    given = _one_of_each(given) if "_foreach_" in op.name() else given
    named = twins.twins(op, given, twins.small)
    traced = _leaves(given, torch.SymFloat)
    if traced and numbers.guarded(_predicate(op, named), traced) is not False:
        return
    plain = numbers.plain(named)
    error = twins.refusal(op, plain, warns=True) if is_draw else _verdict(op, plain)
    if error is twins.UNKNOWN and infers:  # no kernel for the dtypes, or for small sizes
        meta.infer(op, (), numbers.plain(given))
    elif error is not None and error is not twins.UNKNOWN:
        error.add_note(f"in {errors.describe_call(op, (), given)}")
        raise error


def _one_of_each(given: dict[str, Any]) -> dict[str, Any]:
    """Return lists that an optimizer passes, hundreds alike, with each kind of place once."""
    lists = {name: value for name, value in given.items() if isinstance(value, list | tuple)}
    if len(set(map(len, lists.values()))) != 1:
        return given
    columns = {tuple(map(_kind, column)): column for column in zip(*lists.values(), strict=True)}
    return given | dict(zip(lists, map(list, zip(*columns.values(), strict=True)), strict=False))


def _verdict(op: Any, named: dict[str, Any]) -> Exception | None:
    """Return the CPU's error for numbers among twins, if it takes ordinary ones in their place."""
    takers = [a.name for a in op._schema.arguments if takes_number(a)]
    given = {name: named[name] for name in takers if name in named}
    others = (_instead(given, number, object) for number in _ORDINARY)
    return twins.verdict(
        op, [named], lambda *_: any(twins.refusal(op, named | one) is None for one in others)
    )


# One function for all equal calls, so that the tape of a trace has one for each number.
_predicates: dict[tuple, Callable[..., bool]] = {}


def _predicate(op: Any, named: dict[str, Any]) -> Callable[..., bool]:
    """Return a function: whether other values of the traced numbers of a call pass as well."""
    leaves, form = jax.tree.flatten(named)
    known = op, form, *map(_kind, leaves)
    if known in _predicates:
        return _predicates[known]
    blank = object()  # a number of the trace would keep the trace alive
    leaves = [blank if isinstance(leaf, torch.SymFloat) else leaf for leaf in leaves]

    @functools.lru_cache(ENTRIES_REMEMBERED)
    def passes(*values: float) -> bool:
        count = iter(values)
        filled = [next(count) if leaf is blank else leaf for leaf in leaves]
        return _verdict(op, jax.tree.unflatten(form, filled)) in (None, twins.UNKNOWN)

    if len(_predicates) >= ENTRIES_REMEMBERED:
        _predicates.clear()
    _predicates[known] = passes
    return passes
