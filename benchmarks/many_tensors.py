"""Training steps of many small tensors, mostly overhead: the first one, and each later one.

Linear layers of 4 to 4 with AdamW: 200 of them are 400 parameters. The first step is compiled,
in a fresh process without a cache on disk. Later ones are chains of
:mod:`benchmarks.jit_overhead`.

``python -m benchmarks.many_tensors 200`` prints the seconds of one first step.
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks import jit_overhead
from benchmarks.timing import Timed, first, in_fresh_process, note

LAYERS = (200, 800)
FIRST = {200: 3.0, 800: 10.0}  # seconds
MODULE = "benchmarks.many_tensors"


def run() -> None:
    """First steps, then later ones."""
    for layers in LAYERS:
        (seconds,), mode = in_fresh_process(MODULE, str(layers), TORCH_JAX_CACHE="0")
        title, wanted = f"{_title(layers)}: seconds of the first step", FIRST[layers]
        print(f"\n{title}: {seconds:.1f} (wanted {wanted}), {mode}")
        note(title, "torch_jax.jit", "", seconds, wanted, mode)
    for layers in LAYERS:
        jit_overhead.measure("AdamW", layers)


def _title(layers: int) -> str:
    return f"{2 * layers} parameters of 4x4 and 4, AdamW"


def first_step(layers: int) -> Timed:
    """Seconds from a model on its device to the first loss."""
    torch.ones(2, device="jax").add(1).cpu()
    step = jit_overhead.training("AdamW", layers)
    return first(lambda: step().item())


if __name__ == "__main__":
    print(json.dumps(first_step(int(sys.argv[1]))))
