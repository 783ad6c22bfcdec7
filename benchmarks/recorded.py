"""Recording: an operator, a GPT's training step, the cost of recording it, and a small network.

"Pure" is ``torch_jax.jit(pure=True)``, with its Python skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from benchmarks import cases, models, modes
from benchmarks.cases import GPT
from benchmarks.timing import Samples, Timed, compare, sample
from torch_jax.recorded.lazy import fused

OPERATORS = 200
STEPS = 10


def _operators() -> dict[str, Callable[[], Any]]:
    """Adding and clamping a small tensor, again and again."""
    z, y = torch.ones(4, 4, device="jax"), torch.ones(4, 4, device="jax")
    a, b = jnp.ones((4, 4)), jnp.ones((4, 4))
    add = jax.jit(jnp.add)

    def ours() -> None:
        x = z
        for _ in range(OPERATORS // 2):
            x = torch.relu(x + y)

    def lazily() -> None:
        with torch_jax.lazy():
            ours()

    def bare() -> None:
        x = a
        for _ in range(OPERATORS):
            x = add(x, b)

    return {"recorded": lazily, "bare jitted add": bare, "eager": ours}


def _gpt() -> dict[str, Callable[[], Any]]:
    step = cases.torch_step(GPT, "jax")
    _, batch = GPT.made()
    inputs, targets = (one.to("jax") for one in batch)

    def lazily() -> float:
        with torch_jax.lazy():
            loss = step(inputs, targets)
        return loss.item()

    return {"recorded": lazily, "pure": cases.training(GPT, "jax", compiled=True, pure=True)}


def _recording() -> Samples:
    """Seconds that Python takes of a step of a GPT of 12 layers, up to the start of its program."""
    deep = GPT._replace(model=lambda: models.Gpt(models.GPT._replace(layers=12)))
    step = cases.torch_step(deep, "jax")
    inputs, targets = (one.to("jax") for one in deep.made()[1])

    def seconds() -> float:
        start = time.perf_counter()
        with torch_jax.lazy():
            loss = step(inputs, targets)
        taken = time.perf_counter() - start
        loss.item()
        return taken

    return {
        "recording, hashing, look-up": Timed([seconds() for _ in range(8)][3:], modes.mode(seconds))
    }


def _digits() -> dict[str, Callable[[], Any]]:
    """Ten steps of a convolutional network on 8x8 images, by each way."""

    def steps(device: str) -> Callable[[], float]:
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        x, y = torch.randn(32, 1, 8, 8).to(device), torch.randint(0, 10, (32,)).to(device)

        def run() -> float:
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = F.cross_entropy(network(x), y)
                loss.backward()
                optimizer.step()
            return loss.item()

        return run

    in_groups = steps("jax")

    def grouped() -> float:
        with fused():
            return in_groups()

    return {"fused": grouped, "eager": steps("jax"), "PyTorch eager, CPU": steps("cpu")}


def run() -> None:
    """Time all four."""
    samples = sample(_operators(), 5, 60)
    compare(
        "relu(z + y) on 4x4, 200 operators and a sync", samples, {"bare jitted add": 1.9}, "us", 1e6
    )
    compare("GPT training step, AdamW", sample(_gpt(), 2, 10), {"pure": 1.1})
    compare("A step of a GPT of 12 layers: Python's part, wanted below 60 ms", _recording(), {})
    compare("Ten steps of a network for digits", sample(_digits(), 1, 20), {"eager": 0.5})
