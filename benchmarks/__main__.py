"""Run the benchmarks: all of them, or those named on the command line (``ops``, ``jit`` ...).

Where ``BENCH_RESULTS`` names a file, ratios go there too, for ``docs/performance.py``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from benchmarks import machine, timing

NAMES = (
    "speed",
    "many_tensors",
    "start",
    "ops",
    "loops",
    "gpt",
    "jit",
    "jit_start",
    "jit_overhead",
    "jit_memory",
    "jit_layers",
    "optimizers",
    "sharded",
    "distributed",
    "recorded",
    "compile",
    "transforms",
    "generation",
    "xla_options",
    "layers",
)

ONLY_IF_NAMED = ("xla_options", "layers")  # for new releases of XLA


def main(names: list[str]) -> None:
    """Say what is measured with, then run each benchmark and keep what it finds."""
    found = machine.conditions()
    print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
    for name in names:
        timing.ROWS.clear()
        importlib.import_module(f"benchmarks.{name}").run()
        keep(name, found | {"load_after": machine.ready_tasks_of_others()})


def keep(benchmark: str, conditions: dict[str, Any]) -> None:
    """Add the rows of a benchmark that is over to the file ``BENCH_RESULTS``, if there is one."""
    path = os.environ.get("BENCH_RESULTS")
    if path:
        with open(path, "a") as file:
            for row in timing.ROWS:
                line = {"benchmark": benchmark, **row, "conditions": conditions}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or [name for name in NAMES if name not in ONLY_IF_NAMED])
