"""The checks of an entry of the database, one function for each.

Each takes the entry and a sample on the CPU with its number, and runs both devices. It returns
False where the question does not arise, True where jax does as the CPU does, and raises where it
does not. Those that :func:`in_two_parts` makes can stop between their calls and the look at what
these gave: a recording holds the calls of many.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Generator
from typing import Any

import torch

from tests.conformance.samples import differentiable, dtype_name
from tests.conformance.unique import UNIQUE, is_random
from tests.support.agreement import assert_agree, both_raised, wide
from tests.support.arguments import on, outcome, tensors

Parts = Callable[[Any, Any, int], Generator[None, None, bool]]


def in_two_parts(parts: Parts) -> Callable[[Any, Any, int], bool]:
    """A question whose calls are before its one ``yield``, and their comparison behind it.

    The question is asked at once; ``parts`` of it is the generator.
    """

    @functools.wraps(parts)
    def ask(entry: Any, sample: Any, number: int) -> bool:
        begun = parts(entry, sample, number)
        called, answer = advanced(begun)
        return advanced(begun)[1] if called else answer

    ask.parts = parts  # type: ignore[attr-defined]
    return ask


def advanced(begun: Generator[None, None, bool]) -> tuple[bool, bool]:
    """Go to the ``yield`` of a question in parts, or to its end: whether it is there, its answer.

    >>> advanced(pause for pause in (None,))
    (True, False)
    """
    try:
        next(begun)
    except StopIteration as end:
        return False, bool(end.value)
    return True, False


@in_two_parts
def forward(entry: Any, sample: Any, number: int) -> Generator[None, None, bool]:
    """The result: dtype, shape, values, or the type of the exception."""
    call = functools.partial(apply, entry.op)
    cpu, jax = on("cpu", arguments_of(sample)), on("jax", arguments_of(sample))
    expected, actual = outcome(call, cpu), outcome(call, jax)
    yield
    if both_raised(actual, expected):
        return True
    unique = functools.partial(told_apart, entry)
    assert_agree(
        unique(jax, actual[0]), unique(cpu, expected[0]), reference(entry, sample, call, unique)
    )
    return True


def views(entry: Any, sample: Any, number: int) -> bool:
    """An output that aliases an input does so on jax: its geometry, and writes through it."""
    cpu, jax = on("cpu", detached(sample)), on("jax", detached(sample))
    expected, error = outcome(apply, entry.op, cpu)
    if error is not None:
        return False
    aliases = _aliases(expected, cpu)
    if not any(a is not None for a in aliases):
        return False
    actual = apply(entry.op, jax)
    assert _aliases(actual, jax) == aliases, f"aliases {_aliases(actual, jax)}, not {aliases}"
    for one, other, alias in zip(tensors(actual), tensors(expected), aliases, strict=True):
        if alias is None:
            continue
        assert (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset())
        assert one._is_view() == other._is_view()
        if is_random(entry.full_name, *arguments_of(sample)):
            assert_agree(one, tensors(jax)[alias].cpu())
            continue
        wrote = outcome(_overwrite, other)
        if not both_raised(outcome(_overwrite, one), wrote):
            assert_agree(jax, cpu)
            assert_agree(one, other)
    return True


@in_two_parts
def in_place(entry: Any, sample: Any, number: int) -> Generator[None, None, bool]:
    """The in-place method: what it returns, what it writes, and the casts it refuses."""
    if entry.inplace_variant is None or not isinstance(sample.input, torch.Tensor):
        return False
    if sample.broadcasts_input:  # the database says: no sample for a method that writes its input
        return False
    call = functools.partial(apply, entry.inplace_variant)
    cpu, jax = on("cpu", detached(sample)), on("jax", detached(sample))
    expected, actual = outcome(call, cpu), outcome(call, jax)
    yield
    if both_raised(actual, expected):
        return True
    assert (actual[0] is jax[0][0]) == (expected[0] is cpu[0][0]), "must return its input"
    assert jax[0][0]._version == cpu[0][0]._version, "version counters differ"
    unique = functools.partial(told_apart, entry)
    assert_agree(
        unique(jax, actual[0]), unique(cpu, expected[0]), reference(entry, sample, call, unique)
    )
    return True


def out(entry: Any, sample: Any, number: int) -> bool:
    """``out=``: a fitting tensor, an empty one, one of another shape, one of another dtype."""
    if not entry.supports_out:
        return False
    cpu, jax = on("cpu", detached(sample)), on("jax", detached(sample))
    expected, error = outcome(apply, entry.op, cpu)
    if error is not None or not tensors(expected):
        return False
    for shaped in (_fitting, *(_ODD_OUTS if number == 0 else _ODD_OUTS[number % 3 :][:1])):
        given = [shaped(t) for t in tensors(expected)]
        wanted = _call_out(entry.op, cpu, expected, given, "cpu")
        found = _call_out(entry.op, jax, expected, given, "jax")
        if both_raised(found, wanted):
            continue
        assert found[0][0] == wanted[0][0], (
            f"warns {found[0][0]}, not {wanted[0][0]}: {shaped.__name__}"
        )
        assert found[0][1] == wanted[0][1], f"returns its out= {found[0][1]}: {shaped.__name__}"
        if shaped is _fitting:
            assert [t.stride() for t in found[0][2]] == [t.stride() for t in wanted[0][2]]
        unique = functools.partial(told_apart, entry)
        again = functools.partial(apply, entry.op)
        assert_agree(
            unique(jax, _like(expected, found[0][2])),
            unique(cpu, _like(expected, wanted[0][2])),
            reference(entry, sample, again, unique) if shaped is not _other_dtype else None,
        )
    return True


@in_two_parts
def backward(entry: Any, sample: Any, number: int) -> Generator[None, None, bool]:
    """Gradients of the inputs."""
    if not differentiable(entry, _dtype_of(sample)):
        return False
    call = functools.partial(gradients_of, entry, sample)
    expected = outcome(call, on("cpu", arguments_of(sample)))
    if expected == (None, None):
        return False
    actual = outcome(call, on("jax", arguments_of(sample)))
    yield
    if both_raised(actual, expected):
        return True
    assert_agree(actual[0], expected[0], reference(entry, sample, call, _itself, gradients=True))
    return True


def gradgrad(entry: Any, sample: Any, number: int) -> bool:
    """``gradgradcheck``: second derivatives against differences of the first ones."""
    if not entry.supports_gradgrad or not differentiable(entry, torch.float64):
        return False
    if _dtype_of(sample) is not torch.float64 or is_random(entry.full_name, *arguments_of(sample)):
        return False
    cpu = outcome(_gradgradcheck, entry, sample, on("cpu", arguments_of(sample)))
    if cpu[1] is not None or not cpu[0]:  # nothing to differentiate, or at a kink
        return False
    return _gradgradcheck(entry, sample, on("jax", arguments_of(sample)))


def errors(entry: Any, error: Any, number: int) -> bool:
    """Bad input: the same exception type as on the CPU."""
    sample = error.sample_input
    expected = outcome(apply, entry.op, on("cpu", arguments_of(sample)))
    if expected[1] is None:
        return False
    return both_raised(outcome(apply, entry.op, on("jax", arguments_of(sample))), expected)


def refused(entry: Any, sample: Any, number: int) -> bool:
    """A dtype that the CPU does not take is not computed with."""
    call = functools.partial(apply, entry.op)
    expected = outcome(call, on("cpu", detached(sample)))
    if expected[1] is None:
        return False
    actual = outcome(call, on("jax", detached(sample)))
    assert actual[1] is not None, f"computes, where the CPU raises {expected[1]!r}"
    return True


# --- pieces ---------------------------------------------------------------------------------------


def arguments_of(sample: Any) -> tuple[tuple, dict]:
    return (sample.input, *sample.args), sample.kwargs


def detached(sample: Any) -> tuple[tuple, dict]:
    """A sample's arguments, without gradients."""

    def strip(value: Any) -> Any:
        return value.detach() if isinstance(value, torch.Tensor) else value

    plain = sample.transform(strip)
    return (plain.input, *plain.args), plain.kwargs


def apply(function: Callable[..., Any], arguments: tuple[tuple, dict]) -> Any:
    args, kwargs = arguments
    return function(*args, **kwargs)


def told_apart(entry: Any, arguments: tuple[tuple, dict], result: Any) -> Any:
    """What of a result is the same for all right ones."""
    invariant = UNIQUE.get(entry.full_name)
    with torch.no_grad():
        return result if invariant is None else invariant(*arguments, result)


def reference(
    entry: Any, sample: Any, call: Callable, unique: Callable, gradients: bool = False
) -> Callable | None:
    """The same computation in double precision on the CPU; None where nothing is floating."""
    if is_random(entry.full_name, *arguments_of(sample)):
        return None

    def compute() -> Any:
        arguments = wide(on("cpu", arguments_of(sample) if gradients else detached(sample)))
        result, error = outcome(call, arguments)
        return None if error is not None else unique(arguments, result)

    return compute


def _itself(arguments: tuple[tuple, dict], result: Any) -> Any:
    return result


def _dtype_of(sample: Any) -> torch.dtype:
    """The dtype that the sample's leaves are of."""
    leaves = [t for t in tensors(arguments_of(sample)) if t.requires_grad]
    return leaves[0].dtype if leaves else torch.bool


def _aliases(outputs: Any, arguments: Any) -> list[int | None]:
    """For each output, which of the input tensors it shares its storage with."""
    inputs = [t.untyped_storage()._cdata for t in tensors(arguments)]
    found = [t.untyped_storage()._cdata for t in tensors(outputs)]
    return [inputs.index(storage) if storage in inputs else None for storage in found]


def _overwrite(view: torch.Tensor) -> None:
    """Write something else through a view: what is read back tells who shares the memory.

    Where elements of the view share memory, only writing the same to all of them is defined.
    """
    if _overlaps(view):
        view.fill_(1)
    elif view.dtype == torch.bool:
        view.logical_not_()
    else:
        view.add_(1)


def _overlaps(view: torch.Tensor) -> bool:
    """Whether two elements of a view are one in memory."""
    last = sum((n - 1) * step for n, step in zip(view.shape, view.stride(), strict=True))
    positions = torch.arange(last + 1 if view.numel() else 0)
    at = positions.as_strided(view.shape, view.stride()) if view.numel() else positions
    return at.unique().numel() < at.numel()


def _fitting(t: torch.Tensor) -> torch.Tensor:
    return torch.full_like(t, 1)


def _empty(t: torch.Tensor) -> torch.Tensor:
    return t.new_empty(0)


def _misshapen(t: torch.Tensor) -> torch.Tensor:
    return t.new_ones((*t.shape, 2) if t.numel() else (3,))


def _other_dtype(t: torch.Tensor) -> torch.Tensor:
    other = torch.int64 if t.is_floating_point() or t.is_complex() else torch.float64
    return torch.full_like(t, 1, dtype=other)


_ODD_OUTS = (_empty, _misshapen, _other_dtype)  # all for the first sample, then each in turn


def _call_out(op: Callable, arguments: Any, form: Any, given: list, device: str) -> Any:
    """Call with ``out=``: whether it warned, whether it returned what it was given, the tensors."""
    outs = [t.clone() if device == "cpu" else t.to(device) for t in given]
    args, kwargs = arguments

    def call() -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = op(*args, **kwargs, out=_like(form, outs))
        resized = any("was resized" in str(w.message) for w in caught)
        return resized, [a is b for a, b in zip(tensors(result), outs, strict=True)], outs

    try:
        return call(), None
    except Exception as error:
        return None, error


def _like(form: Any, outs: list[torch.Tensor]) -> Any:
    return outs[0] if isinstance(form, torch.Tensor) else tuple(outs)


def _differentiable_part(sample: Any, result: Any) -> list[torch.Tensor]:
    """The outputs that have gradients, by the database's own choice of what is well defined."""
    return [t for t in tensors(sample.output_process_fn_grad(result)) if t.requires_grad]


def gradients_of(entry: Any, sample: Any, arguments: tuple[tuple, dict]) -> Any:
    leaves = [t for t in tensors(arguments) if t.requires_grad]
    outputs = _differentiable_part(sample, apply(entry.op, arguments))
    if not leaves or not outputs:
        return None
    weights = [incoming(o) for o in outputs]
    gradients = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
    if is_random(entry.full_name, *arguments_of(sample)):
        return [g if g is None else torch.zeros_like(g) for g in gradients]
    return list(gradients)


def incoming(output: torch.Tensor) -> torch.Tensor:
    """Fixed incoming gradients: eighths, which every floating dtype holds exactly."""
    generator = torch.Generator().manual_seed(1)
    real = torch.randint(-16, 17, output.shape, generator=generator) / 8
    return real.to(output.device, output.dtype)


def _gradgradcheck(entry: Any, sample: Any, arguments: tuple[tuple, dict]) -> bool:
    leaves = [t for t in tensors(arguments) if t.requires_grad]

    def function(*values: torch.Tensor) -> Any:
        new = dict(zip(map(id, leaves), values, strict=True))
        result = apply(entry.op, _with(arguments, new))
        return tuple(_differentiable_part(sample, result))

    if not leaves or not function(*leaves):
        return False
    return torch.autograd.gradgradcheck(
        function,
        leaves,
        fast_mode=True,
        check_batched_grad=False,
        nondet_tol=entry.gradcheck_nondet_tol,
    )


def _with(value: Any, new: dict[int, torch.Tensor]) -> Any:
    """``value`` with the tensors in ``new`` (by identity) put in their places."""
    if isinstance(value, torch.Tensor):
        return new.get(id(value), value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_with(v, new) for v in value)
    if isinstance(value, dict):
        return {k: _with(v, new) for k, v in value.items()}
    return value


def first_failure(function: Any, entry: Any, cases: list[Any]) -> tuple[bool, str]:
    """Whether the question arose for any case, and how the first that failed did so."""
    asked = False
    for number, case in enumerate(cases):
        try:
            asked |= function(entry, case, number)
        except Exception as error:
            text = " ".join(str(error).split()) or repr(error)
            return True, f"sample {number}: {type(error).__name__}: {text[:400]}"
    return asked, ""


CHECKS: dict[str, Callable[[Any, Any, int], bool]] = {
    "forward": forward,
    "in-place": in_place,
    "out=": out,
    "views": views,
    "backward": backward,
    "gradgrad": gradgrad,
}


def label(check: str, dtype: torch.dtype | None) -> str:
    """The row of the table that a check counts for: forward results have one per dtype."""
    return f"forward {dtype_name(dtype)}" if check == "forward" and dtype else check
