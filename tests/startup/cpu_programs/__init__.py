"""Small programs that do not use the device: they give the same with this package and without.

``python -m tests.startup.cpu_programs`` runs some of them, one after the other, and prints what
each gave or raised, and of what it warned, as JSON.
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


def programs() -> dict[str, Program]:
    """Return the programs of all files, by name."""
    from tests.startup.cpu_programs import compiling, devices, spread, tensors  # noqa: F401

    return PROGRAMS


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
