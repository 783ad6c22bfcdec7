"""Count what the recording executor has done: operators, graphs, and why these have programs."""

from __future__ import annotations

import threading
from collections import Counter, deque

from torch_jax.budgets import EXPLANATIONS_KEPT
from torch_jax.core import log, tracers


class Counts:
    """Counters of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self.operators = 0  # that were recorded and run
        self.graphs = 0  # recordings that were run
        self.hits = 0  # those of them that ran a program of an earlier one
        self.compiles = 0  # programs that were made for them
        # values that were looked at before they were computed, by line of the user's code
        self.early: Counter[str] = Counter()
        # why programs were made, the latest ones
        self.explanations: deque[str] = deque(maxlen=EXPLANATIONS_KEPT)

    def ran(self, operators: int) -> None:
        with self._lock:
            self.operators += operators
            self.graphs += 1

    def found(self) -> None:
        with self._lock:
            self.hits += 1

    def looked_at(self) -> None:
        """Count a look at a value that is not computed yet, for which a recording runs early."""
        line = tracers.user_line()
        with self._lock:
            self.early[line] += 1

    def compiled(self, explanation: str, seconds: float) -> None:
        """Count and log a new program, with the reason."""
        log.LOGGER.info("compiled %s (in %.2f s)", explanation, seconds)
        with self._lock:
            self.compiles += 1
            self.explanations.append(explanation)


COUNTS = Counts()
