"""Which calls of a function under ``torch_jax.jit`` run recorded: all, until skipping Python pays.

A function that is called a few times gains nothing from a trace of its Python, and a trace relies
on that Python to stay as it was. So the first calls of each kind are recorded
(:mod:`torch_jax.recorded.recorder`), where Python runs as ever. Whoever goes on calling alike is
traced; and where a trace did not fit any more, recording goes on for twice as many calls.
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

    def goes_on(self, key: CallKey, has_changed: bool) -> bool:
        """Whether a call that no trace fits is to be recorded.

        ``has_changed``: there are traces of this key, and what they rely on has changed.
        """
        first = config.get("jit_recorded_calls")
        kind = alike(key)
        so_far, most = self._calls.pop(kind, (0, first))
        if has_changed and so_far >= most:
            so_far, most = 0, 2 * most
        goes_on = so_far < most
        self._calls[kind] = so_far + goes_on, most
        if len(self._calls) > _MOST:
            gone, _ = self._calls.popitem(last=False)
            self._states.pop(gone, None)
        return goes_on

    def recorded(self, key: CallKey, graphs: list[Graph]) -> None:
        """A call has been recorded."""
        self._states[alike(key)] = [graph.state for graph in graphs]

    def states(self, key: CallKey) -> list[State] | None:
        """The graphs that the last recorded call of this kind has run, None where none was."""
        return self._states.get(alike(key))
