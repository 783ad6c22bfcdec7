"""Run the benchmarks: all of them, or those named on the command line (``ops``, ``jit`` ...)."""

from __future__ import annotations

import importlib
import platform
import sys

import jax
import torch

NAMES = (
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
)


def main(names: list[str]) -> None:
    """Say what is measured with, then run each benchmark."""
    print(
        f"torch {torch.__version__}, jax {jax.__version__} on {jax.default_backend()}, "
        f"Python {platform.python_version()}, {torch.get_num_threads()} threads"
    )
    for name in names:
        importlib.import_module(f"benchmarks.{name}").run()


if __name__ == "__main__":
    main(sys.argv[1:] or list(NAMES))
