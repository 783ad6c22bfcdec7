"""How long the first training step takes: tracing, compiling, running; in fresh processes.

``python -m benchmarks.jit_start ours`` (or ``bare``) prints the seconds of one process.
"""

from __future__ import annotations

import sys
import tempfile
import time

from benchmarks import cases
from benchmarks.timing import compare, in_fresh_process

ROUNDS, CACHE_ROUNDS = 5, 3
TARGET, CACHE_TARGET = 1.25, 0.4
OURS, BARE = "torch_jax.jit", "hand-written JAX"
MODULE = "benchmarks.jit_start"


def run() -> None:
    """Compare first steps, then those of processes that find the persistent cache filled."""
    samples: dict[str, list[float]] = {OURS: [], BARE: []}
    for _ in range(ROUNDS):
        samples[OURS].append(in_fresh_process(MODULE, "ours", TORCH_JAX_CACHE="0"))
        samples[BARE].append(in_fresh_process(MODULE, "bare"))
    compare("GPT: time to the first finished training step", samples, {BARE: TARGET}, "s ", 1)
    filled, empty = "cache on disk filled", "cache on disk empty"
    samples = {filled: [], empty: []}
    for _ in range(CACHE_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            for name in (empty, filled):
                where = {"TORCH_JAX_CACHE": "1", "TORCH_JAX_CACHE_DIR": folder}
                samples[name].append(in_fresh_process(MODULE, "ours", **where))
    title = "GPT: the same in a second process, torch_jax.jit"
    compare(title, samples, {empty: CACHE_TARGET}, "s ", 1)


def first_step(who: str) -> float:
    """Seconds from a model on its device to the first loss."""
    if who == "ours":
        step = cases.training(cases.GPT, "jax", compiled=True)
    else:
        step = cases.bare_training(cases.GPT)
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(first_step(sys.argv[1]))
