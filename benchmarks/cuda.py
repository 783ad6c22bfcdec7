"""Training steps by PyTorch on CUDA, in a process that does not import torch_jax.

PyTorch has one accelerator in a process: where that is the device ``jax``, backward passes on CUDA
fail. ``python -m benchmarks.cuda GPT2 eager highest float32 20`` prints seconds of so many steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import cases

WAYS: dict[str, Callable[[Any], Any]] = {"eager": lambda model: model, "inductor": torch.compile}
STEPS_BEFORE = 5


def use_precision(precision: str) -> None:
    """Set how exact float32 products are; those of convolutions likewise."""
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision != "highest"


def seconds(case: cases.Case, way: str, count: int) -> list[float]:
    """Return how long each of the steps takes, when some have been made before."""
    step = cases.torch_step(case, "cuda", WAYS[way])
    batch = [one.to("cuda") for one in case.made()[1]]
    found = []
    for _ in range(STEPS_BEFORE + count):
        start = time.perf_counter()
        step(*batch).item()
        found.append(time.perf_counter() - start)
    return found[STEPS_BEFORE:]


if __name__ == "__main__":
    name, way, precision, dtype, count = sys.argv[1:]
    use_precision(precision)
    case = getattr(cases, name)
    if dtype != "float32":
        case = case._replace(autocast=getattr(torch, dtype))
    print(json.dumps(seconds(case, way, int(count))))
