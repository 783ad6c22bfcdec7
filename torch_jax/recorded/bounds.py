"""Between which integers the results of a graph lie: indices that a graph itself has made.

A check of indices looks at values, and would run what is recorded. But the indices that ``sort``,
``topk``, ``argmax`` or ``arange`` give cannot be out of range for any data: interval
arithmetic over the jaxprs that made them proves it, once for a graph. On the CPU it is asked again
at each call, with the least and the greatest of the arrays that the graph is given: labels that a
step takes. Where these prove nothing, as of labels of which some mean "ignore", the check itself is
computed of the arrays. What depends on other values is checked when these are known.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from torch_jax._private.jaxprs import called_once, core
from torch_jax.budgets import PLACES_REMEMBERED
from torch_jax.compiler import options
from torch_jax.core.x64 import x64
from torch_jax.recorded.one_by_one import Operands
from torch_jax.recorded.path import (
    Constant,
    Given,
    Moving,
    Number,
    Result,
    State,
    Step,
    numbers_of,
)

# The least and the greatest of an array's elements; None for what are no integers.
Interval = tuple[int, int] | None


class Check:
    """The check of an operator's indices, and the operators of the graph that have made these."""

    def __init__(self, state: State, part: Any, sources: Sequence[Any]):
        """Take the ``part`` of an operator after ``state`` that checks, and all its operands."""
        self.part, self._operands = part, sources
        own = Step(None, tuple(part.of(sources)), part, "", "")  # the check, as an operator
        wanted = {source.at for source in own.sources if isinstance(source, Result)}
        # first result, operator, and place among the steps of a recording
        making = [(state.nodes, own, 0)]
        for one in state.way():
            first = one.before.nodes if one.before else 0
            if one.step is not None and wanted.intersection(range(first, one.nodes)):
                making.append((first, one.step, one.operators + one.given))
                # the integers among its operands: others bound nothing
                wanted.update(s.at for s in _bounding(one.step) if isinstance(s, Result))
        self._making = making[::-1]
        steps = [step for _, step, _ in making]
        self.given = {s.at for step in steps for s in _bounding(step) if isinstance(s, Given)}
        # whether it takes integers that differ from run to run
        self._moves = any(map(_is_integer, itertools.chain(*(step.sources for step in steps))))
        self._proved: dict[int, Interval] = {}  # the widest intervals of these that it holds for
        # once intervals did not prove it
        self._by_elements: Callable[[Any, Any], Any] | None = None

    def integers(self, numbers: Sequence[Any], log: Sequence[Any]) -> list | None:
        """Return the integers of a run by operator and operand, from its log and own numbers."""
        if not self._moves:
            return None
        made = [_integers(step.sources, log[place][2]) for _, step, place in self._making[:-1]]
        return [*made, self.part.of(_integers(self._operands, numbers))]

    def holds(self, arrays: Any, integers: list | None) -> bool | None:
        """Return whether it holds for arrays, by their least and greatest, or by their elements.

        None: other values decide.
        """
        if not (self.given or self._moves):
            return None
        if self._by_elements is None:
            if (self._between if self._moves else self._has_held)(arrays, integers):
                return True
            self._by_elements = self._program(integers) or self._between
        with x64():
            return self._by_elements(arrays, integers)

    def _between(self, arrays: Any, integers: list | None) -> bool | None:
        """Return whether it holds for all arrays between these; None where it may."""
        return self.holds_for({at: _of_array(arrays[at]) for at in self.given}, integers) or None

    def _has_held(self, arrays: Any, _integers: Any) -> bool:
        """Return whether it holds for all arrays between these, and those that were proved so."""
        given = {at: _of_array(arrays[at]) for at in self.given}
        wider = {at: _hull(one, self._proved.get(at, one)) for at, one in given.items()}
        for tried in () if wider == self._proved else (wider, given):
            if self.holds_for(tried):
                self._proved = tried
                return True
        return wider == self._proved

    def _program(self, integers: list | None) -> Callable[[Any, Any], Any] | None:
        """Return the check as a program of a graph's arrays; None where it takes other values."""
        steps = list(self._steps(integers))
        made = {first + at for first, step in steps for at in range(len(step.body.outs))}
        known = {Given: self.given, Result: made}
        others = (one for _, step in steps for one in step.sources if type(one) is not Constant)
        if not all(getattr(one, "at", None) in known.get(type(one), ()) for one in others):
            return None

        @functools.partial(jax.jit, compiler_options=options.operator())
        def check(given: dict[int, Any], integers: list | None) -> Any:
            operands = Operands((), (), given)
            operands.results = {}  # some of the graph's
            for first, step in self._steps(integers):
                found = core.jaxpr_as_fun(step.body.jaxpr)(*operands.of(step.sources))
                operands.results.update(enumerate(found, first))
            return found[0]

        return lambda arrays, integers: bool(check({at: arrays[at] for at in self.given}, integers))

    def _steps(self, integers: list | None = None) -> Iterator[tuple[int, Step]]:
        """Yield the operators, with their first results, and a run's integers as constants."""
        for at, (first, step, _) in enumerate(self._making):
            if integers is not None:
                pairs = zip(step.sources, integers[at], strict=True)
                sources = tuple(one if n is None else Constant(n) for one, n in pairs)
                step = step._replace(sources=sources)
            yield first, step

    def holds_for(self, given: dict[int, Interval], integers: list | None = None) -> bool:
        """Return whether it holds for all arrays between these integers, or for any arrays."""
        known: dict[int, Interval] = {}
        for first, step in self._steps(integers):
            pairs = zip(step.sources, step.body.jaxpr.in_avals, strict=True)
            operands = [_operand(source, aval, known, given) for source, aval in pairs]
            found = intervals(step.body.jaxpr, operands)
            known.update(enumerate(found, first))
        return found == [(1, 1)]


def _bounding(step: Step) -> Iterator[Any]:
    """Yield where the integers among an operator's operands come from."""
    pairs = zip(step.sources, step.body.jaxpr.in_avals, strict=True)
    return (source for source, aval in pairs if _whole(aval))


def _is_integer(source: Any) -> bool:
    """Return whether an operand is an integer, or several, that a run is given."""
    return isinstance(source, Moving) or (isinstance(source, Number) and source.kind is not float)


def _integers(sources: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    """Return which integers of a run operands are; None for others."""
    rest = iter(numbers)
    return [_integer(source, numbers_of(source, rest)) for source in sources]


def _integer(source: Any, values: tuple[Any, ...]) -> Any:
    if not _is_integer(source):
        return None
    dtype = source.dtype if isinstance(source, Moving) else source.kind
    return np.array(values if getattr(source, "is_list", False) else values[0], dtype)


def _operand(source: Any, aval: Any, known: dict[int, Interval], given: Any) -> Interval:
    if isinstance(source, Result):
        return known.get(source.at, _whole(aval))
    if isinstance(source, Given):
        return given.get(source.at, _whole(aval))
    return _of_value(source.value) if isinstance(source, Constant) else _whole(aval)


def _whole(aval: Any) -> Interval:
    """Return the interval of all values of a dtype."""
    dtype = getattr(aval, "dtype", None)
    if dtype == np.bool_:
        return 0, 1
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iu":  # keys of JAX's have own dtypes
        return None
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _of_value(value: Any) -> Interval:
    """Return the interval of an array's elements, or a number's."""
    array = np.asarray(value)
    if array.dtype.kind not in "biu" or not array.size:
        return None
    return int(array.min()), int(array.max())


_known: dict[int, tuple[Any, Interval]] = {}  # of arrays of JAX's, by their id


def _of_array(array: Any) -> Interval:
    """Return the interval of an array, at whose elements it looks once: they never change."""
    reference, found = _known.get(id(array), (None, None))
    if reference is None or reference() is not array:
        found = _of_value(array)
        if isinstance(array, jax.Array):
            _known[id(array)] = weakref.ref(array), found
            if len(_known) > PLACES_REMEMBERED:
                _known.clear()
    return found


def intervals(closed: Any, operands: Sequence[Interval]) -> list[Interval]:
    """Return the intervals of a closed jaxpr's results, from those of its operands.

    >>> import jax, jax.numpy as jnp
    >>> closed = jax.make_jaxpr(lambda x: (x.argmax() * 2, x > 0))(jnp.ones(5))
    >>> intervals(closed, [None])
    [(0, 8), (0, 1)]
    """
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.constvars, map(_of_value, closed.consts), strict=True))
    known.update(zip(jaxpr.invars, operands, strict=True))

    def of(atom: Any) -> Interval:
        return _of_value(atom.val) if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        given = list(map(of, equation.invars))
        if (inner := called_once(equation)) is not None:
            known.update(zip(equation.outvars, intervals(inner, given), strict=True))
            continue
        found = _equation(equation, given)
        for variable, interval in zip(equation.outvars, found, strict=True):
            whole = _whole(variable.aval)  # for what the dtype does not hold: integers wrap around
            known[variable] = interval if whole and _hull(interval, whole) == whole else whole
    return list(map(of, jaxpr.outvars))


def _equation(equation: Any, given: list[Interval]) -> list[Interval]:
    """Return the intervals of an equation's results; None where nothing is known."""
    name = equation.primitive.name
    if name in ("sort", "optimization_barrier"):
        return given
    shape = equation.invars[0].aval.shape if given else ()
    if name == "top_k":
        return [given[0], (0, shape[equation.params.get("axis", -1)] - 1)]
    if name in ("argmax", "argmin"):
        return [(0, max(math.prod(shape[axis] for axis in equation.params["axes"]) - 1, 0))]
    rule = _RULES.get(name)
    if rule is None or None in given:
        return [None] * len(equation.outvars)
    return [rule(equation, *given)]


def _hull(*given: Any) -> Interval:
    """Return the interval that contains all of these, None where one is unknown."""
    if None in given:
        return None
    return min(low for low, _ in given), max(high for _, high in given)


def _by_ends(function: Callable[..., int], is_logical: bool = False) -> Callable[..., Interval]:
    """Return the rule of a function, or one of truth values, that is monotonic in each operand."""

    def rule(equation: Any, *given: Any) -> Interval:
        if is_logical and not _is_bool(equation):
            return None
        values = [function(*ends) for ends in itertools.product(*given)]
        return min(values), max(values)

    return rule


def _is_bool(equation: Any) -> bool:
    return equation.outvars[0].aval.dtype == np.bool_


def _and(equation: Any, a: Any, b: Any) -> Interval:
    """Bound ``and``, also of integers: no result is above an operand that is not negative."""
    if _is_bool(equation):
        return min(a[0], b[0]), min(a[1], b[1])
    highs = [high for low, high in (a, b) if low >= 0]
    return (0, min(highs)) if highs else None


def _truth(equation: Any, a: Any) -> Interval:
    """Bound ``reduce_and`` and ``reduce_or``: of no elements they give their neutral element."""
    if 0 in equation.invars[0].aval.shape:
        neutral = int(equation.primitive.name == "reduce_and")
        return neutral, neutral
    return a if _is_bool(equation) else None


def _differ(_equation: Any, a: Any, b: Any) -> Interval:
    if a[1] < b[0] or b[1] < a[0]:
        return 1, 1
    return (0, 0) if a[0] == a[1] == b[0] == b[1] else None


def _quotient(equation: Any, a: Any, b: Any) -> Interval:
    """Bound a quotient, which is cut off toward zero, as in C."""
    if b[0] <= 0:
        return None
    return _by_ends(lambda a, b: abs(a) // b * (1 if a > 0 else -1))(equation, a, b)


def _remainder(_equation: Any, a: Any, b: Any) -> Interval:
    """Bound a remainder, which has the sign of the dividend, as in C."""
    if b[0] <= 0:
        return None
    most = b[1] - 1
    return max(-most, a[0]) if a[0] < 0 else 0, min(most, a[1]) if a[1] > 0 else 0


def _gather(equation: Any, a: Any, at: Any) -> Interval:
    """Bound a gather: beside elements it gives what its mode fills in at places out of range."""
    of, numbers = equation.params, equation.params["dimension_numbers"]
    room = np.subtract(equation.invars[0].aval.shape, of["slice_sizes"])[[*numbers.start_index_map]]
    is_within = at[0] >= 0 and (room >= at[1]).all()
    return a if is_within or "FILL" not in str(of["mode"]).upper() else None


# Equations whose results are elements of their first operand.
_MOVES = """
    broadcast_in_dim convert_element_type copy cummax cummin dynamic_slice expand_dims reshape rev
    slice squeeze stop_gradient transpose
""".split()

# Of equations with one result. Each takes the equation and the intervals of all operands, which are
# known; where a rule gives None, the result may be any value of its dtype.
_RULES: dict[str, Callable[..., Interval]] = {
    **{name: _by_ends(getattr(operator, name)) for name in "add ge gt le lt mul neg sub".split()},
    "max": _by_ends(max),
    "min": _by_ends(min),
    "rem": _remainder,
    "clamp": _by_ends(lambda low, a, high: min(max(a, low), high)),
    "div": _quotient,
    "ne": _differ,
    "and": _and,
    "or": _by_ends(max, is_logical=True),
    "not": _by_ends(lambda a: 1 - a, is_logical=True),
    "reduce_and": _truth,
    "reduce_or": _truth,
    "iota": lambda of, *_: (0, max(of.params["shape"][of.params["dimension"]] - 1, 0)),
    "gather": _gather,
    "select_n": lambda _, which, *cases: _hull(*cases[which[0] : which[1] + 1]),
    **dict.fromkeys(("concatenate", "pad"), lambda _, *given: _hull(*given)),
    "dynamic_update_slice": lambda _, a, update, *_starts: _hull(a, update),
    **dict.fromkeys(_MOVES, lambda _, a, *_rest: a),
}
