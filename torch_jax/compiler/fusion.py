"""Results that are put into memory, where XLA's compiler for the CPU would compute them too often.

XLA fuses an operator with all that read its result. Those that read elements of other places –
shifted, transposed, repeated – compute each of them again, and all behind it: the loop
``x = x + x.roll(1, 0) + x.roll(-1, 0)`` takes three times as long for each further round, and for
forty rounds 50 times as long as PyTorch. So such reads are counted here, and where too many are
behind a result, it is put into memory. Elements of the same place are computed once for all.

So is an array of which a program writes a part before it reads another: a cache of keys, by a step
that generates a token. A read that computes the write again needs the array of before, so that XLA
copies it. And so is what is computed of an array and put into a part of it: where one of the two
sees the array in another shape, XLA may read it while it writes there (jaxlib 0.10.2).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any

import jax

from torch_jax import target
from torch_jax._private.jaxprs import called_once, core, with_barriers
from torch_jax.budgets import READS_OF_A_FUSION
from torch_jax.compiler.rounding import compared_in_memory

# Equations that read elements of other places, and are fused.
_MOVES = frozenset(
    "broadcast_in_dim concatenate dynamic_slice gather pad rev slice transpose".split()
)
_RESHAPES = frozenset(("expand_dims", "reshape", "squeeze"))
# Equations that are not fused, although their results have the shape of their operands.
_ALONE = frozenset(
    "cholesky cond cumlogsumexp cummax cummin cumprod cumsum fft lu optimization_barrier "
    "pure_callback scan sort triangular_solve while".split()
)
_ALL = "all"  # the key of all reads in counts by operand


def bounded(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return a function of arrays with such results in memory, by its own equations."""

    @functools.wraps(function)
    def run(*arrays: Any) -> list[Any]:
        if not target.on_cpu():
            return function(*arrays)
        closed = jax.make_jaxpr(function)(*arrays)
        ways = results_in_memory, compared_in_memory, written_in_memory, moved_in_memory
        held = chain.from_iterable(way(closed.jaxpr) for way in ways)
        return core.jaxpr_as_fun(with_barriers(closed, held))(*arrays)

    return run


@dataclasses.dataclass(eq=False)
class _Move:
    """An equation that reads other places: how many, with those behind, and of each operand."""

    reads: Counter[Any]


# The moves behind a value, and the operands of its jaxpr that it reads at the same place.
_Behind = frozenset[Any]
_NOTHING: _Behind = frozenset()


def results_in_memory(jaxpr: Any) -> list[Any]:
    """Return the variables of a jaxpr that are to be put into memory.

    >>> def run(x):
    ...     for _ in range(20):
    ...         x = x + x[::-1]
    ...     return x
    >>> len(results_in_memory(jax.make_jaxpr(run)(jax.numpy.ones(5)).jaxpr))
    3
    """
    known: dict[Any, _Behind] = {}
    found = []
    are_read = {id(atom) for eqn in jaxpr.eqns for atom in eqn.invars}
    for eqn in jaxpr.eqns:
        for var, behind in zip(eqn.outvars, _results(eqn, _of(known, eqn.invars)), strict=True):
            are_many = _reads(behind)[_ALL] > READS_OF_A_FUSION
            if are_many and id(var) in are_read:
                found.append(var)
            known[var] = _NOTHING if are_many else behind
    return found


def written_in_memory(jaxpr: Any) -> list[Any]:
    """Return the variables that are an operand of a jaxpr with a part written, and then read.

    >>> def run(x):
    ...     x = x.at[1].set(0).at[2].set(0)
    ...     return x, x[:3].sum()
    >>> [str(v.aval) for v in written_in_memory(jax.make_jaxpr(run)(jax.numpy.ones(5)).jaxpr)]
    ['float32[5]']
    """
    versions = set(jaxpr.invars)
    read: set[int] = set()
    written = []
    for eqn in jaxpr.eqns:
        bases = dict(zip(eqn.outvars, _bases(eqn), strict=False))
        over = [base for base, is_written in bases.values() if is_written]
        read.update(id(atom) for atom in map(_variable, eqn.invars) if atom not in over)
        for var, (base, is_written) in bases.items():
            if base in versions:
                versions.add(var)
                written += [var] * is_written
    return [var for var in written if id(var) in read]


def moved_in_memory(jaxpr: Any) -> list[Any]:
    """Return the variables that are put into a part of an array of which they are computed.

    >>> def run(x):
    ...     return x.reshape(3, 2).at[1:].set(x[:4].reshape(2, 2), unique_indices=True)
    >>> [str(v.aval) for v in moved_in_memory(jax.make_jaxpr(run)(jax.numpy.ones(6)).jaxpr)]
    ['float32[2,2]']
    """
    own: dict[Any, int] = {var: 1 << at for at, var in enumerate(jaxpr.invars)}  # a bit for each
    behind = own.copy()  # the bits of all arrays that a variable is computed of
    found = []
    for eqn in jaxpr.eqns:
        operands = [atom for atom in map(_variable, eqn.invars) if atom in own]
        together = functools.reduce(int.__or__, map(behind.__getitem__, operands), 0)
        for var, (base, is_written) in zip_longest(eqn.outvars, _bases(eqn), fillvalue=(None, 0)):
            if is_written and base in own:
                found += [a for a in operands if own[a] != own[base] and behind[a] & own[base]]
            own[var] = own[base] if base in own and not is_written else 1 << len(own)
            behind[var] = together | own[var]
    return found


def _bases(eqn: Any) -> list[tuple[Any, bool]]:
    """Return for each result the operand that it is, if any, and whether but for a written part."""
    inner, name = called_once(eqn), eqn.primitive.name
    if inner is None:
        is_write = name == "dynamic_update_slice" or name.startswith("scatter")
        return [(_variable(eqn.invars[0]), is_write)] if is_write or name in _RESHAPES else []
    operands = zip(inner.jaxpr.invars, map(_variable, eqn.invars), strict=True)
    known = {var: (atom, False) for var, atom in operands}
    for one in inner.jaxpr.eqns:
        for var, (base, is_written) in zip(one.outvars, _bases(one), strict=False):
            if base in known:
                known[var] = known[base][0], known[base][1] or is_written
    return [known.get(_variable(one), (None, False)) for one in inner.jaxpr.outvars]


def _variable(atom: Any) -> Any:
    """Return an atom of a jaxpr; None for a literal, which has no hash."""
    return None if isinstance(atom, core.Literal) else atom


def _of(known: dict[Any, _Behind], atoms: Iterable[Any]) -> list[_Behind]:
    return [_NOTHING if isinstance(a, core.Literal) else known.get(a, _NOTHING) for a in atoms]


def _results(eqn: Any, operands: Sequence[_Behind]) -> list[_Behind]:
    """Return what is behind the results of an equation."""
    inner, name = called_once(eqn), eqn.primitive.name
    if inner is not None:
        return _called(_inside(inner.jaxpr), operands)
    together = _NOTHING.union(*operands)
    sides = eqn.invars, eqn.outvars
    given, result = ({getattr(one.aval, "shape", ()) for one in side} for side in sides)
    if all(math.prod(shape) <= 1 for shape in result):  # computed once for all that read it
        return [_NOTHING] * len(eqn.outvars)
    if name in _MOVES and given != {()}:
        return [frozenset((_Move(_reads(together) + Counter((_ALL,))),))]
    is_fused = name in _RESHAPES or (name not in _ALONE and given <= {(), *result})
    return [together if is_fused else _NOTHING] * len(eqn.outvars)


def _inside(jaxpr: Any) -> list[_Behind]:
    """Return what is behind each result of a jaxpr, with its operands as numbers."""
    known: dict[Any, _Behind] = {var: frozenset((at,)) for at, var in enumerate(jaxpr.invars)}
    for eqn in jaxpr.eqns:
        known.update(zip(eqn.outvars, _results(eqn, _of(known, eqn.invars)), strict=True))
    return _of(known, jaxpr.outvars)


def _called(results: Iterable[_Behind], operands: Sequence[_Behind]) -> list[_Behind]:
    """Return what is behind the results of a jaxpr that is given these operands."""

    @functools.cache
    def given(one: Any) -> _Behind:
        if type(one) is int:
            return operands[one]
        total = Counter({_ALL: one.reads[_ALL]})
        for at in one.reads.keys() - {_ALL}:
            total.update({k: n * one.reads[at] for k, n in _reads(operands[at]).items()})
        return frozenset((_Move(total),))

    return [_NOTHING.union(*map(given, result)) for result in results]


def _reads(behind: _Behind) -> Counter[Any]:
    """Return how many reads of other places are behind a value, and how many of each operand."""
    total: Counter[Any] = Counter()
    for one in behind:
        total.update({one: 1} if type(one) is int else one.reads)
    return total
