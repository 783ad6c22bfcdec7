"""Which calls of a function under ``torch_jax.jit`` run recorded: all, until skipping Python pays.

A function that is called a few times gains nothing from a trace of its Python, and a trace relies
on that Python to stay as it was. So the first calls of each kind are recorded
(:mod:`torch_jax.recorded.recorder`), where Python runs as ever, and the last of them is watched by
a scout (:mod:`torch_jax.capture.state.scout`). Whoever goes on calling alike is traced, if Python
takes a part of the call that is worth it; and where a trace did not fit any more, recording goes on
for twice as many calls.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import jax

from torch_jax import config
from torch_jax.capture.evidence import Graph
from torch_jax.capture.keys import CallKey, alike

_MOST = 1024  # kinds of calls that are counted

# Python is skipped at the price of compiling once more. That pays unless operators take so many
# times longer than Python, by XLA's count of their operations: clocks would not repeat.
_TIMES = 10
_SECONDS_AN_OPERATOR = 20e-6
_OPERATIONS_A_SECOND = {"cpu": 1e11, "gpu": 2e13, "tpu": 5e13}


class WarmUp:
    """How often each kind of call has been recorded."""

    def __init__(self) -> None:
        self._calls: OrderedDict[Any, tuple[int, int]] = OrderedDict()  # so far, and how many to be
        self._graphs: dict[Any, list[Graph]] = {}  # of the last recorded call of each kind

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
            self._graphs.pop(gone, None)
        return left

    def pays(self, key: CallKey) -> bool:
        """Whether Python takes a part of calls of this kind that is worth skipping."""
        states = [graph.state for graph in self._graphs.get(alike(key), ())]
        programs = [state.programs for state in states if state.programs]
        flops = sum(max(one.flops for one in some) for some in programs)
        rate = _OPERATIONS_A_SECOND.get(jax.default_backend(), 1e13)
        python = sum(state.operators for state in states) * _SECONDS_AN_OPERATOR
        return not config.get("jit_recorded_calls") or flops / rate <= _TIMES * python

    def once_more(self, key: CallKey) -> None:
        """The next call of this kind is recorded too, and is the last one."""
        kind = alike(key)
        if kind in self._calls:
            _, most = self._calls[kind]
            self._calls[kind] = max(most, 1) - 1, most

    def recorded(self, key: CallKey, graphs: list[Graph]) -> None:
        """A call has been recorded; kinds that are not counted, and never end, are not kept."""
        kind = alike(key)
        if kind in self._calls:
            self._graphs[kind] = graphs

    def start_again(self, key: CallKey) -> None:
        """Calls of this kind are recorded again, twice as many."""
        kind = alike(key)
        _, most = self._calls.get(kind, (0, config.get("jit_recorded_calls")))
        self._calls[kind] = 0, 2 * max(most, 1)

    def graphs(self, key: CallKey) -> list[Graph] | None:
        """What the last recorded call of this kind has run, None where none was."""
        return self._graphs.get(alike(key))
