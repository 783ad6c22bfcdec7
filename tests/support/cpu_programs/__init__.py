"""Small programs that do not use the device: what they give must not hang on this package.

``python -m tests.support.cpu_programs`` runs them one after the other and prints, as JSON, what
each gave or raised, and of what it warned.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Enter a program under its name."""
    assert function.__name__ not in PROGRAMS, function.__name__
    PROGRAMS[function.__name__] = function
    return function


def model() -> nn.Module:
    """A small model, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@contextmanager
def group(*backend: str) -> Iterator[None]:
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{folder}/group"
        dist.init_process_group(*backend, init_method=place, rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()
