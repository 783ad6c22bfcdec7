"""What the recording executor has done so far: operators, graphs, compilations, seconds."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch_jax.core import log


class Counts:
    """Counters of this process."""

    def __init__(self) -> None:
        self.operators = self.graphs = self.compiles = 0
        self.compile_seconds = 0.0
        self.early: Counter[str] = Counter()

    def ran(self, operators: int) -> None:
        """A recording of so many operators is run."""
        self.operators += operators
        self.graphs += 1


COUNTS = Counts()


def compiled(state: Any, seconds: float) -> None:
    """A graph was compiled."""
    COUNTS.compiles += 1
    COUNTS.compile_seconds += seconds
    log.LOGGER.info("compiled a recorded graph of %d operators in %.2f s", state.operators, seconds)
