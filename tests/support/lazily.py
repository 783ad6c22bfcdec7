"""Counts of recorded execution within a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch_jax
from torch_jax.core.node import Node
from torch_jax.recorded.metrics import COUNTS


class Did:
    """Counts of a block; filled when it ends.

    Attributes:
      compiles: programs that were made for recordings.
      graphs: recordings that were run.
      early: values looked at before they were computed, over all lines.
      lines: the lines at which that happened.
      explanations: why these were made.
    """

    compiles: int
    graphs: int
    early: int
    lines: list[str]
    explanations: list[str]


@contextlib.contextmanager
def counted() -> Iterator[Did]:
    """A block, what is recorded in it counted."""
    did, before, programs = Did(), torch_jax.metrics(), COUNTS.counted["compiles"]
    yield did
    now = torch_jax.metrics()
    did.compiles = COUNTS.counted["compiles"] - programs
    did.graphs = now["graphs"] - before["graphs"]
    lines = {
        line: count - before["early_syncs"].get(line, 0)
        for line, count in now["early_syncs"].items()
    }
    did.lines = [line for line, count in lines.items() if count]
    did.early = sum(lines.values())
    did.explanations = now["explanations"][len(now["explanations"]) - did.compiles :]


def is_pending(tensor: Any) -> bool:
    """Whether a tensor's memory has not been computed yet."""
    memory = tensor.untyped_storage().array
    return type(memory) is Node and memory.recording is not None
