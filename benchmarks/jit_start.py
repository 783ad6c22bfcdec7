"""The time of the first training step: tracing, compiling, running; in fresh processes.

``python -m benchmarks.jit_start ours GPT`` (or ``dynamo``, ``bare``; ``GPT2``, another case) prints
the seconds of one process.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import jax

from benchmarks import cases, compile
from benchmarks.timing import Samples, Timed, compare, first, in_fresh_process, together

ROUNDS, CACHE_ROUNDS = 5, 3
TARGET, CACHE_TARGET = 1.25, 0.4
OURS, BARE, DYNAMO = "torch_jax.jit", "hand-written JAX", 'torch.compile(backend="jax")'
FILLED, EMPTY = "cache on disk filled", "cache on disk empty"
MODULE = "benchmarks.jit_start"


def run(rounds: int = ROUNDS, cache_rounds: int = CACHE_ROUNDS, case: str = "GPT") -> None:
    """Compare first steps, then those of processes that find the persistent cache filled."""
    runs: dict[str, list[Any]] = {OURS: [], BARE: []}
    for _ in range(rounds):
        runs[OURS].append(in_fresh_process(MODULE, "ours", case, TORCH_JAX_CACHE="0"))
        runs[BARE].append(in_fresh_process(MODULE, "bare", case))
    samples = {name: together(some) for name, some in runs.items()}
    compare(f"{case}: time to the first finished training step", samples, {BARE: TARGET}, "s ", 1)
    for who, name in (("ours", OURS), ("dynamo", DYNAMO)):
        samples = _with_cache(who, case, cache_rounds)
        title = f"{case}: the same in a second process, {name}"
        compare(title, samples, {EMPTY: CACHE_TARGET}, "s ", 1)


def _with_cache(who: str, case: str, rounds: int) -> Samples:
    """Seconds of processes that find the persistent cache empty, or filled by the one before."""
    runs: dict[str, list[Any]] = {FILLED: [], EMPTY: []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name in (EMPTY, FILLED):
                where = {"TORCH_JAX_CACHE": "1", "TORCH_JAX_CACHE_DIR": folder}
                runs[name].append(in_fresh_process(MODULE, who, case, **where))
    return {name: together(some) for name, some in runs.items()}


def first_step(who: str, case: cases.Case) -> Timed:
    """Seconds from a model on its device to the first loss."""
    steps = {
        "ours": lambda: cases.training(case, "jax", compiled=True),
        "dynamo": lambda: compile.training(case, "jax", "jax"),
        "bare": lambda: cases.bare_training(case),
    }
    with jax.default_matmul_precision("highest"):  # of hand-written JAX: ours has PyTorch's
        return first(steps[who]())


if __name__ == "__main__":
    print(json.dumps(first_step(sys.argv[1], getattr(cases, sys.argv[2]))))
