"""Numbers among arguments: each is checked once, as the CPU's kernels check it.

Python numbers are inputs of a compiled entry, so that another learning rate compiles nothing. A
compile therefore sees the first number only. So every number that is new to an operator, with
tensors of these dtypes, is tried on the CPU's own kernel (:mod:`torch_jax.eager.twins`), whose
error is raised. Numbers that passed are remembered, and then cost one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core import errors, numbers
from torch_jax.eager import meta, probes, twins
from torch_jax.ops.registry import Lowering

Call = Callable[..., Any]

# Operators whose size depends on their numbers, all static: each compile checks them.
_SIZED = frozenset({"arange", "range"})

_PLAIN = frozenset({float, int, bool, str, type(None)})
_ORDINARY = (1, 0.5, 0, 1.0, 2, True)


def checked(op: Any, lowering: Lowering, call: Call) -> Call:
    """Wrap ``call``, which takes the arguments of ``op``, to check every new number before.

    Return ``call`` itself where there are no numbers to check, or each compile checks them.
    """
    taken = _numbers_to_check(op)
    if not taken or taken <= lowering.static:
        return call
    first = next(
        i for i, a in enumerate(op._schema.arguments) if a.name in taken or a.kwarg_only
    )  # calls with fewer arguments bring none
    infers = lowering.meta is True
    passed: set[tuple] = set()
    bounds = probes.Bounds(op)

    def check(known: tuple, args: tuple, kwargs: dict[str, Any]) -> None:
        kind = probes.kind_of(known)
        if bounds.hold(kind, (*args, *kwargs.values())):
            return
        _refuse(op, infers, args, kwargs)
        bounds.passed(kind, dict(zip(twins.names_of(op), args, strict=False)) | kwargs)
        # with no elements to compute, some kernels check nothing
        if not any(isinstance(v, torch.Tensor) and not v.numel() for v in args):
            if len(passed) >= ENTRIES_REMEMBERED:
                passed.clear()
            passed.add(known)

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


def refuse_static(op: Any, lowering: Lowering, args: tuple, kwargs: dict[str, Any]) -> None:
    """Check numbers that are part of an entry's key, when it is compiled."""
    taken = _numbers_to_check(op)
    if taken and taken <= lowering.static:
        _refuse(op, lowering.meta is True, args, kwargs)


def _refuse(op: Any, infers: bool, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise the CPU's error for the numbers of a call."""
    error = _refused(op, infers, dict(zip(twins.names_of(op), args, strict=False)) | kwargs)
    if error is not None:
        raise error


def _numbers_to_check(op: Any) -> set[str]:
    """Return the names of an overload's numbers that its CPU kernel can check."""
    if twins.on_cpu(op) is not op:
        return set()
    packet = op._schema.name.removeprefix("aten::").removesuffix("_")
    names = {a.name for a in op._schema.arguments if takes_number(a)} - operands(op)
    drawing = torch.Tag.nondeterministic_seeded in op.tags
    if (
        packet in _SIZED
        or packet.startswith("special_")  # polynomials: as many steps as their number says
        or not twins.can_be_small(op)
        or (drawing and "generator" not in twins.names_of(op))  # it would draw from the user's
    ):
        return set()
    return names


def operands(op: Any) -> set[str]:
    """Return the names of two operands, of which either may be a number, if an overload has such.

    PyTorch makes a tensor of the number, and reads only its type, which is part of an entry's key.
    They are the most frequent numbers. A test calls the CPU kernels of their operators.
    """
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
        return object()  # a number of a trace: looked at each time
    if isinstance(value, torch.Generator):
        return None
    return kind, value


def _refused(op: Any, infers: bool, given: dict[str, Any]) -> Exception | None:
    """Return the error for the numbers of a call, None where the CPU takes them."""
    given = _one_of_each(given) if "_foreach_" in op.name() else given
    named = twins.twins(op, given, twins.small)
    traced = [value for value in _flat(given.values()) if isinstance(value, torch.SymFloat)]
    if traced:
        asked = numbers.guarded(_predicate(op, given, named), traced)
        if asked is not False:
            return None
    error = _verdict(op, numbers.plain(named))
    if error is _UNKNOWN:
        error = _refused_by_meta(op, numbers.plain(given)) if infers else None
    if error is not None:
        error.add_note(f"in {errors.describe_call(op, (), given)}")
    return error


def _one_of_each(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operator over lists, without places that would be checked alike.

    An optimizer passes hundreds of tensors, all with one number, which changes at each step.
    """
    lists = {name: value for name, value in given.items() if isinstance(value, list | tuple)}
    if len(set(map(len, lists.values()))) != 1:
        return given
    columns = enumerate(zip(*lists.values(), strict=True))
    places = {tuple(map(_kind, column)): i for i, column in columns}
    return given | {name: [value[i] for i in places.values()] for name, value in lists.items()}


_UNKNOWN = RuntimeError("the CPU cannot say")


def _verdict(op: Any, named: dict[str, Any]) -> Exception | None:
    """Return the CPU's error for the numbers among twins of the arguments.

    A refusal may be due to the twins, which are smaller and hold other values than the tensors. It
    is due to the numbers if the CPU computes with ordinary ones.
    """
    error = twins.refusal(op, named)
    if error is None:
        return None
    takers = [a.name for a in op._schema.arguments if takes_number(a)]
    for ordinary in _ORDINARY:
        other = {k: _instead(v, ordinary) if k in takers else v for k, v in named.items()}
        if twins.refusal(op, other) is None:
            return error.with_traceback(None)
    return _UNKNOWN


def _instead(value: Any, number: Any) -> Any:
    if isinstance(value, list | tuple):
        return [number for _ in value]
    return None if value is None else number


def _refused_by_meta(op: Any, given: dict[str, Any]) -> Exception | None:
    """Return the meta function's error, if the CPU has no kernel for the dtypes or small sizes."""
    try:
        meta.infer(op, (), given)
    except RuntimeError as error:
        return error
    return None


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


# One function for all equal calls, so that the tape of a trace has one for each number.
_predicates: dict[tuple, Callable[..., bool]] = {}


def _predicate(op: Any, given: dict[str, Any], named: dict[str, Any]) -> Any:
    """Return a function: whether other values of the traced numbers of a call pass as well."""
    known = (op, *(k for v in given.items() for k in (v[0], _alike(v[1]))))
    found = _predicates.get(known)
    if found is not None:
        return found

    def passes(*values: float) -> bool:
        if values in passed:
            return True
        error = _verdict(op, _filled(form, iter(values)))
        if error is None or error is _UNKNOWN:
            if len(passed) >= ENTRIES_REMEMBERED:
                passed.clear()
            passed.add(values)
            return True
        return False

    passed: set[tuple] = set()
    form = _with_blanks(named)
    if len(_predicates) >= ENTRIES_REMEMBERED:
        _predicates.clear()
    _predicates[known] = passes
    return passes


def _alike(value: Any) -> Any:
    """Return :func:`_kind`'s key, with all numbers of traces alike."""
    if isinstance(value, list | tuple):
        return tuple(map(_alike, value))
    return torch.SymFloat if isinstance(value, torch.SymFloat) else _kind(value)


_BLANK = object()


def _with_blanks(value: Any) -> Any:
    """Return arguments with blanks for the numbers of a trace, which would keep the trace alive."""
    if isinstance(value, dict):
        return {k: _with_blanks(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_blanks(v) for v in value]
    return _BLANK if isinstance(value, torch.SymFloat) else value


def _filled(value: Any, traced: Iterator[float]) -> Any:
    """Return arguments with numbers in place of blanks, in order."""
    if isinstance(value, dict):
        return {k: _filled(v, traced) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(v, traced) for v in value]
    return next(traced) if value is _BLANK else value
