"""Which calls of a function under ``torch_jax.jit`` run recorded: all, until skipping Python pays.

A function that is called a few times gains nothing from a trace of its Python, and a trace relies
on that Python to stay as it was. So the first calls of each kind are recorded
(:mod:`torch_jax.recorded.recorder`), where Python runs as ever, and the last of them is watched by
a scout (:mod:`torch_jax.capture.state.scout`). Whoever goes on calling alike is traced; and where a
trace did not fit any more, recording goes on for twice as many calls.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch_jax import config
from torch_jax.capture.evidence import Graph
from torch_jax.capture.keys import CallKey, alike
from torch_jax.recorded.path import State

_MOST = 1024  # kinds of calls that are counted


class WarmUp:
    """How often each kind of call has been recorded."""

    def __init__(self) -> None:
        self._calls: OrderedDict[Any, tuple[int, int]] = OrderedDict()  # so far, and how many to be
        self._states: dict[Any, list[State]] = {}  # the graphs of the last call of each kind

    def left(self, key: CallKey, has_changed: bool) -> int:
        """How many calls, this one included, are to be recorded before one of this kind is traced.

        ``has_changed``: there are traces of this key, and what they rely on has changed.
        """
        first = config.get("jit_recorded_calls")
        kind = alike(key)
        so_far, most = self._calls.pop(kind, (0, first))
        if has_changed and so_far >= max(most, 1):
            so_far, most = 0, 2 * most
        left = max(max(most, 1) - so_far, 0)  # a scout goes before a trace in any case
        self._calls[kind] = so_far + (left > 0), most
        if len(self._calls) > _MOST:
            gone, _ = self._calls.popitem(last=False)
            self._states.pop(gone, None)
        return left

    def once_more(self, key: CallKey) -> None:
        """The next call of this kind is recorded too, and is the last one."""
        kind = alike(key)
        if kind in self._calls:
            _, most = self._calls[kind]
            self._calls[kind] = max(most, 1) - 1, most

    def recorded(self, key: CallKey, graphs: list[Graph]) -> None:
        """A call has been recorded."""
        self._states[alike(key)] = [graph.state for graph in graphs]

    def states(self, key: CallKey) -> list[State] | None:
        """The graphs that the last recorded call of this kind has run, None where none was."""
        return self._states.get(alike(key))
