"""Count what the recording executor has done, and say why a graph was compiled.

The tree of paths shows where a graph left those before it. Its operator there is compared with that
of the most similar earlier one. Only compilations ask for this.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_jax.budgets import EXPLANATIONS_KEPT, STATES_COMPARED
from torch_jax.core import log, tracers
from torch_jax.memory import dtypes
from torch_jax.recorded.path import Constant, Moving, State


class Counts:
    """Counters of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        # ``operators`` that were recorded and run, ``graphs`` of them, ``hits`` of programs of
        # earlier graphs, and ``compiles`` of programs
        self.counted: Counter[str] = Counter()
        # values that were looked at before they were computed, by line of the user's code
        self.early: Counter[str] = Counter()
        self.explanations: deque[str] = deque(maxlen=EXPLANATIONS_KEPT)  # of ``compiles``

    def add(self, **more: int) -> None:
        with self._lock:
            self.counted.update(more)

    def looked_at(self) -> None:
        """Count a look at a value that is not computed yet, for which a recording runs early."""
        with self._lock:
            self.early[tracers.user_line()] += 1

    def compiled(self, explanation: str, seconds: float) -> None:
        """Count and log a new program, with the reason."""
        log.LOGGER.info("compiled %s (in %.2f s)", explanation, seconds)
        self.add(compiles=1)
        self.explanations.append(explanation)


COUNTS = Counts()
_numbers = itertools.count(1)


def explain(state: State, program: Any) -> str:
    """Say why a program, not yet among the state's, is compiled for a graph that ends there."""
    reason = _again(state, program) if state.number else _reason(state)
    state.number = state.number or next(_numbers)
    operators = f"{state.operators} operator{'s' * (state.operators != 1)}"
    return f"graph {state.number} ({operators}): {reason}"


def _reason(state: State) -> str:
    """Say how a graph differs from those that were recorded before it."""
    if further := max(map(_graph_after, list(state.after.values())), default=0):
        return f"the beginning of graph {further}"
    new, mine = _own_way(state)
    if new is None:
        return "the beginning of an earlier recording" if state.after else "the first one"
    fork = new.before
    siblings = itertools.takewhile(lambda one: one is not new, list(fork.after.values()))
    if not (earlier := list(siblings)[:-STATES_COMPARED:-1]):
        return f"as {_named(fork.number)}, and on from {_call(mine)}"
    other = max(earlier, key=functools.partial(_likeness, mine))
    if not fork.operators and not _likeness(mine, other)[0]:
        return f"like no other, from {_call(mine)} on"
    as_far = _named(_graph_after(other))
    return f"as {as_far} up to {_call(mine)}, {_difference(fork, new, mine, other)}"


def _own_way(state: State) -> tuple[Any, Any]:
    """Return where a graph left the earlier ones, if there are any, and its operator from there."""
    mine = state
    for one in state.way():
        mine = mine if one.step is None else one
        before = one.before
        if before and (before.runs or next(iter(before.after.values()), one) is not one):
            return one, mine
    return None, None


def _named(number: int) -> str:
    return f"graph {number}" if number else "an earlier recording"


def _again(state: State, program: Any) -> str:
    """Say why a graph that has a program is compiled again."""
    if not state.programs:
        return "its program was dropped (setting lazy_programs)"
    known = set(itertools.chain.from_iterable(one.outputs for one in state.programs))
    if added := sorted(set(program.outputs) - known):
        made = next(one for one in state.way() if not one.before or one.before.nodes <= added[0])
        more = f" and {len(added) - 1} more" if len(added) > 1 else ""
        return f"the result of {_call(made)}{more} can be reached now, and could not before"
    were_apart = any(one.floats.is_apart for one in state.programs)
    if program.floats.is_apart and not were_apart:
        return "numbers differ now that were equal in all calls of one operator"
    if all(len(program.donated) > len(one.donated) for one in state.programs):
        return "some of its arguments were used elsewhere, and can be written over now"
    return "some of its arguments are used elsewhere, and must not be written over"


def _first_operator(state: State) -> State | None:
    """Return the operator of a state, or the first one after the arrays that are given there."""
    return next((one for one in _below(state) if one.step is not None), None)


def _below(state: State) -> Iterator[State]:
    """Yield a bounded number of states of the tree below one, the latest branches first."""
    left = [state]
    for _ in range(STATES_COMPARED * STATES_COMPARED):
        if not left:
            return
        one = left.pop()
        yield one
        left += list(one.after.values())


def _graph_after(state: State) -> int:
    """Return the number of a graph that goes through a state; 0 if none was compiled."""
    return next((one.number for one in _below(state) if one.number), 0)


def _likeness(mine: State, sibling: State) -> tuple[bool, bool]:
    if (other := _first_operator(sibling)) is None:
        return False, False
    return mine.step.name == other.step.name, mine.step.line == other.step.line


def _call(state: Any) -> str:
    """Name an operator and the line of its call as ``train.py:41``, without folders."""
    file, _, line = state.step.line.partition(", in ")[0].rpartition(":")
    place = f"{Path(file).name}:{line}" if file else state.step.line
    return f"{state.step.name.replace('::', '.')} at {place}"


def _difference(fork: State, new: State, mine: State, sibling: State) -> str:
    """Say what a recording did differently, as a part of a sentence about its operator."""
    if (other := _first_operator(sibling)) is None:
        return "which no recording had come to"
    if mine.step.name != other.step.name:
        return f"where {_call(other)} was called"
    if mine.step.entry is not other.step.entry:
        if (found := _of_keys(mine.step.entry.key, other.step.entry.key)) is not None:
            return found
    if new.step is None and sibling.step is None:
        return f"whose argument is part of {_form(fork, new)}, was of {_form(fork, sibling)}"
    if mine.step.entry is not other.step.entry:
        return "which is given other arguments, or parts of tensors that lie otherwise"
    return _of_sources(mine.step.sources, other.step.sources)


def _of_sources(mine: tuple, other: tuple) -> str:
    """Say what differs between the operands of two calls of one entry."""
    for one, two in zip(mine, other, strict=True):
        if isinstance(one, Moving) and isinstance(two, Constant):
            return "whose integers change from run to run, and are inputs from now on"
        if type(one) is not type(two):
            return "which takes operands from elsewhere"
        if isinstance(one, Constant):
            if not np.array_equal(one.value, two.value):
                was, now = (np.asarray(of.value).tolist() for of in (two, one))
                return f"whose integers are {now}, were {was}"
        elif one != two:
            return "which takes other results, or other arguments, than before"
    return "which is the same; another thread recorded it meanwhile"


def _form(fork: State, given: State) -> str:
    """Describe the array whose form made a recording leave the path at ``fork``."""
    forms: Any = [form for form, state in list(fork.after.items()) if state is given]
    return _array(forms[0][1], forms[0][0]) if forms else "another array"


def _of_keys(mine: tuple, other: tuple) -> str | None:
    """Say how the keys of two calls differ; None if only in the places of tensors in storages."""
    for at, (one, two) in enumerate(zip(mine, other, strict=False)):
        if type(one) is type(two) and one == two:
            continue
        are_dtypes = isinstance(one, torch.dtype) and isinstance(two, torch.dtype)
        if are_dtypes and at == 0:
            return f"with {one} as the default dtype, was {two}"
        first = at - are_dtypes  # of a tensor a key holds the shape, and then the dtype
        if isinstance(mine[first], torch.Size) and isinstance(other[first], torch.Size):
            forms = [_array(dtypes.to_jax(key[first + 1]), key[first]) for key in (mine, other)]
            return f"whose argument is {forms[0]}, was {forms[1]}"
        if at and not are_dtypes and isinstance(mine[at - 1], torch.dtype):
            return None
        return f"whose argument is {_plain(one)}, was {_plain(two)}"
    more, fewer = _values(mine[len(other) :]), _values(other[len(mine) :])
    return f"which is given {more}, too" if more else f"not given {fewer}" if fewer else None


def _values(key: tuple) -> str:
    """Show the arguments in a part of a key, without their types."""
    return " and ".join(_plain(one) for one in key if not isinstance(one, type))


def _array(dtype: Any, shape: Any) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _plain(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)
