"""Training steps of many small tensors, which are all overhead: the first one, and each later one.

Linear layers of 4 to 4 with AdamW: 200 of them are 400 parameters. The first step is traced and
compiled, in a fresh process without a cache on disk. Later ones are chains of
:mod:`benchmarks.jit_overhead`.

``python -m benchmarks.many_tensors 200`` prints the seconds of one first step.
"""

from __future__ import annotations

import sys
import time

import torch

from benchmarks import jit_overhead
from benchmarks.timing import in_fresh_process, note

LAYERS = (200, 800)
FIRST = {200: 3.0, 800: 10.0}  # seconds
MODULE = "benchmarks.many_tensors"
# Nothing from disk; and the first calls are recorded, which benchmarks leave out otherwise.
_AS_FOR_USERS = {"TORCH_JAX_CACHE": "0", "TORCH_JAX_JIT_RECORDED_CALLS": "8"}


def run() -> None:
    """First steps, then later ones."""
    for layers in LAYERS:
        seconds = in_fresh_process(MODULE, str(layers), **_AS_FOR_USERS)
        print(f"\n{_title(layers)}: the first step took {seconds:.1f} s (wanted {FIRST[layers]} s)")
        wanted = {"wanted": FIRST[layers], "spread": 0.0}
        title = f"{_title(layers)}: seconds of the first step"
        note({"title": title, "ours": "torch_jax.jit", "theirs": "", "ratio": seconds, **wanted})
    for layers in LAYERS:
        jit_overhead.measure("AdamW", layers)


def _title(layers: int) -> str:
    return f"{2 * layers} parameters of 4x4 and 4, AdamW"


def first_step(layers: int) -> float:
    """Seconds from a model on its device to the first loss."""
    torch.ones(2, device="jax").add(1).cpu()
    step = jit_overhead.training("AdamW", layers)
    start = time.perf_counter()
    step().item()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(first_step(int(sys.argv[1])))
