"""Bounds on what is remembered: programs, and the tree of paths to them.

What is forgotten is compiled again. A recording that is under way on a branch that is cut off goes
on there: states know the ones before them, and a program is found where the recording ends.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from torch_jax import config
from torch_jax.recorded.path import MET, ROOT, State

_programs: OrderedDict[Any, State] = OrderedDict()  # and their graphs, the latest run last
_cutting = threading.Lock()


def used(program: Any, state: State) -> None:
    """Note that a program is about to run for a graph."""
    _programs[program] = state
    _programs.move_to_end(program)
    while len(_programs) > config.get("lazy_programs"):
        with suppress(KeyError, ValueError):  # of other threads, one was quicker
            oldest, graph = _programs.popitem(last=False)
            graph.programs.remove(oldest)


def replaced(program: Any) -> None:
    """Forget a program that will not run again: another gives all of its results."""
    _programs.pop(program, None)


def forget() -> None:
    """Forget all paths and programs."""
    with _cutting:
        ROOT.after.clear()
        MET.clear()
        _programs.clear()
        State.count = 1


def cut() -> None:
    """Forget parts of the tree if it has grown too large, those whose programs ran long ago."""
    most = config.get("lazy_states")
    if State.count <= most:
        return
    with _cutting:
        kept = _lately(list(_programs.values())[::-1], most // 2)
        State.count = _keep(ROOT, kept)
        for program, state in list(_programs.items()):
            if state not in kept:
                _programs.pop(program, None)


def _lately(ends: Iterable[State], most: int) -> set[State]:
    """Return the states on the ways to the latest graphs, as many as there is room for."""
    kept: set[State] = set()
    for end in ends:
        way = set(end.way()) - kept
        if kept and len(kept) + len(way) > most:
            break
        kept |= way
    return kept


def _keep(root: State, kept: set[State]) -> int:
    """Cut off all but these states; returns how many are left."""
    count, left = 0, [root]
    while left:
        state = left.pop()
        count += 1
        for key, child in list(state.after.items()):
            if child in kept:
                left.append(child)
            else:
                state.after.pop(key, None)
    return count
