"""Python's share of a recorded call, if all calls record one and the same graph.

Nothing is proven by it: it is a hint that ``jit(pure=True)`` would pay.
"""

from __future__ import annotations

import time
from typing import Any

from torch_jax.budgets import CALLS_BEFORE_HINT, SHARE_WORTH_A_HINT
from torch_jax.recorded.path import State
from torch_jax.recorded.recorder import Listener


class Share(Listener):
    """Hears of the graphs of a function's calls, and of how long Python takes for them."""

    def __init__(self) -> None:
        self._graphs: list[int] = []
        self._last: list[int] = []
        self._alike = 0
        self._begin = self._python = self._first = 0.0

    def begins(self) -> None:
        """Begin a call."""
        self._begin, self._graphs = time.perf_counter(), []

    def before(self, state: State, numbers: list[Any], arrays: list[Any]) -> None:
        """Note a graph that is about to run."""
        if not self._graphs:
            self._python += time.perf_counter() - self._begin
        self._graphs.append(id(state))

    def ends(self) -> str | None:
        """End a call; return the hint, once, when it is due."""
        if self._graphs != self._last or len(self._graphs) != 1:
            self._last, self._alike, self._python = self._graphs, 0, 0.0
            self._first = time.perf_counter()  # behind this call, which may have compiled
            return None
        self._alike += 1
        if self._alike != CALLS_BEFORE_HINT:
            return None
        python, step = (
            seconds / CALLS_BEFORE_HINT * 1e3
            for seconds in (self._python, time.perf_counter() - self._first)
        )
        if python < SHARE_WORTH_A_HINT * step:
            return None
        return (
            f"{self._alike} calls, one graph; Python takes {python:.2f} of {step:.2f} ms: "
            "jit(pure=True) would skip it"
        )
