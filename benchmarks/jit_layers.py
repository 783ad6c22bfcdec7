"""Time recording and compiling many identical layers: a loop over them, and ``scan_layers``.

``python -m benchmarks.jit_layers loop 6`` prints the seconds of one process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import torch_jax
from benchmarks.models import WIDTH, Block
from benchmarks.timing import Timed, compare, first, in_fresh_process, together

FEW, MANY = 6, 48
LENGTH = 32
ROUNDS = 3
TARGET = 1.5


def run() -> None:
    """Compare a few layers with many, then both ways of running the few."""
    cases = (("scan", MANY), ("scan", FEW), ("loop", FEW))
    runs: dict[str, list[Any]] = {f"{how}, {count} layers": [] for how, count in cases}
    for _ in range(ROUNDS):
        for how, count in cases:
            found = in_fresh_process("benchmarks.jit_layers", how, str(count))
            runs[f"{how}, {count} layers"].append(found)
    samples = {name: together(some) for name, some in runs.items()}
    title = "Transformer layers: time to record and compile a training step"
    compare(title, samples, {f"scan, {FEW} layers": TARGET}, "s ", 1)


def seconds_to_compile(how: str, count: int) -> Timed:
    """Seconds that recording and compiling a step of SGD through ``count`` layers took."""
    layers = torch.nn.ModuleList([Block() for _ in range(count)]).to("jax")
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)

    @torch_jax.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        if how == "scan":
            x = torch_jax.scan_layers(layers, x)
        else:
            for layer in layers:
                x = layer(x)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.randn(2, LENGTH, WIDTH).to("jax")
    return first(lambda: step(x).item())


if __name__ == "__main__":
    print(json.dumps(seconds_to_compile(sys.argv[1], int(sys.argv[2]))))
