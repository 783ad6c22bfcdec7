"""How long the first training step takes: tracing, compiling, running; in fresh processes.

``python -m benchmarks.jit_start ours`` (or ``dynamo``, ``bare``) prints the seconds of one process.
"""

from __future__ import annotations

import sys
import tempfile
import time

from benchmarks import cases, compile
from benchmarks.timing import compare, in_fresh_process

ROUNDS, CACHE_ROUNDS = 5, 3
TARGET, CACHE_TARGET = 1.25, 0.4
OURS, BARE, DYNAMO = "torch_jax.jit", "hand-written JAX", 'torch.compile(backend="jax")'
FILLED, EMPTY = "cache on disk filled", "cache on disk empty"
MODULE = "benchmarks.jit_start"


def run() -> None:
    """Compare first steps, then those of processes that find the persistent cache filled."""
    samples: dict[str, list[float]] = {OURS: [], BARE: []}
    for _ in range(ROUNDS):
        samples[OURS].append(in_fresh_process(MODULE, "ours", TORCH_JAX_CACHE="0"))
        samples[BARE].append(in_fresh_process(MODULE, "bare"))
    compare("GPT: time to the first finished training step", samples, {BARE: TARGET}, "s ", 1)
    for who, name in (("ours", OURS), ("dynamo", DYNAMO)):
        samples = _with_cache(who)
        title = f"GPT: the same in a second process, {name}"
        compare(title, samples, {EMPTY: CACHE_TARGET}, "s ", 1)


def _with_cache(who: str) -> dict[str, list[float]]:
    """Seconds of processes that find the persistent cache empty, or filled by the one before."""
    samples: dict[str, list[float]] = {FILLED: [], EMPTY: []}
    for _ in range(CACHE_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            for name in (EMPTY, FILLED):
                where = {"TORCH_JAX_CACHE": "1", "TORCH_JAX_CACHE_DIR": folder}
                samples[name].append(in_fresh_process(MODULE, who, **where))
    return samples


def first_step(who: str) -> float:
    """Seconds from a model on its device to the first loss."""
    steps = {
        "ours": lambda: cases.training(cases.GPT, "jax", compiled=True),
        "dynamo": lambda: compile.training(cases.GPT, "jax", "jax"),
        "bare": lambda: cases.bare_training(cases.GPT),
    }
    step = steps[who]()
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(first_step(sys.argv[1]))
