"""The time of a process to its first result: whole processes, from Python's start to its end.

Others may use the machine, so that the processor's seconds stand beside those of the clock.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from benchmarks import modes
from benchmarks.timing import Timed, compare

ROUNDS = 7
TARGETS = {"torch + jax + its first operation": 1.15}
OURS = "first result, cache on disk filled"

_OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
_FIRST_OF_JAX = "import jax.numpy as jnp; (jnp.ones(3) + 1).block_until_ready()"
_FIRST = "import torch; (torch.ones(3, device='jax') + 1).tolist()"


class Program(NamedTuple):
    """What a process runs, and what differs in its environment."""

    code: str
    environment: dict[str, str]


def programs(cache: str) -> dict[str, Program]:
    """Each row's program; ours comes first, as ratios are to it."""
    return {
        OURS: Program(_FIRST, {"TORCH_JAX_CACHE": "1", "TORCH_JAX_CACHE_DIR": cache}),
        "first result, no cache on disk": Program(_FIRST, {"TORCH_JAX_CACHE": "0"}),
        "torch + jax + its first operation": Program(f"import torch; {_FIRST_OF_JAX}", _OFF),
        "torch + jax": Program("import torch, jax", _OFF),
        "jax + its first operation": Program(_FIRST_OF_JAX, _OFF),
        "jax": Program("import jax", _OFF),
        "import torch, device asleep": Program("import torch", {}),
        "torch": Program("import torch", _OFF),
        "Python": Program("pass", _OFF),
    }


def seconds(program: Program) -> tuple[float, float]:
    """Seconds of a process by the clock, and those in which it had a processor."""
    start, before = time.perf_counter(), _used()
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | program.environment
    subprocess.run([sys.executable, "-c", program.code], env=environment, check=True)
    return time.perf_counter() - start, _used() - before


def _used() -> float:
    times = os.times()
    return times.children_user + times.children_system


def run() -> None:
    """Compare processes that alternate, after one of each, which compiles Python's files."""
    with tempfile.TemporaryDirectory() as cache:
        table = programs(cache)
        for program in table.values():
            seconds(program)
        rounds = [{name: seconds(one) for name, one in table.items()} for _ in range(ROUNDS)]
    ran = {name: modes.mode(functools.partial(exec, one.code, {})) for name, one in table.items()}
    for index, what in enumerate(("by the clock", "of a processor")):
        samples = {
            name: Timed([times[name][index] for times in rounds], ran[name]) for name in table
        }
        compare(f"A process to its first result: seconds {what}", samples, TARGETS, "s ", 1)


if __name__ == "__main__":
    run()
