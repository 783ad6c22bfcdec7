"""Run the benchmarks: all of them, or those named on the command line (``ops``, ``jit`` ...).

Where ``BENCH_RESULTS`` names a file, ratios go there too, for ``docs/performance.py``.
"""

from __future__ import annotations

import datetime
import importlib
import os
import platform
import sys

import jax
import torch

from benchmarks.timing import note

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
)

FOR_NEW_RELEASES = ("xla_options",)  # of XLA; it takes long, and runs only where it is named


def conditions(names: list[str]) -> dict[str, object]:
    """What is measured with, and how busy the machine is beside it."""
    return {
        "torch": torch.__version__,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.date.today().isoformat(),
        "names": names,
    }


def main(names: list[str]) -> None:
    """Say what is measured with, then run each benchmark."""
    print(
        f"torch {torch.__version__}, jax {jax.__version__} on {jax.default_backend()}, "
        f"Python {platform.python_version()}, {torch.get_num_threads()} threads"
    )
    note(conditions(names))
    for name in names:
        importlib.import_module(f"benchmarks.{name}").run()


if __name__ == "__main__":
    main(sys.argv[1:] or [name for name in NAMES if name not in FOR_NEW_RELEASES])
