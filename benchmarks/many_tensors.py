"""Training steps of many small tensors, which are all overhead: the first one, and each later one.

Linear layers of 4 to 4 with AdamW: 200 of them are 400 parameters. The first step is traced and
compiled, in a fresh process without a cache on disk. A later one is held against a bare call of
``jax.jit`` that takes and donates as many arrays, and gives as many back.

``python -m benchmarks.many_tensors 200`` prints the seconds of one first step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from torch import nn

import torch_jax
from benchmarks.timing import compare, in_fresh_process, note, sample

LAYERS = (200, 800)
FIRST, STEADY = {200: 3.0, 800: 10.0}, 2.5  # seconds, and times the bare call
MODULE = "benchmarks.many_tensors"
ROUNDS, CALLS = 15, 3
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
        contenders = {"torch_jax.jit": training(layers), "bare jax.jit": bare(layers)}
        title = f"{_title(layers)}: later steps"
        compare(title, sample(contenders, CALLS, ROUNDS), {"bare jax.jit": STEADY})


def _title(layers: int) -> str:
    return f"{2 * layers} parameters of 4x4 and 4, AdamW"


def training(layers: int) -> Callable[[], float]:
    """A step of a chain of layers, as PyTorch's users write it."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)]).to("jax")
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(4, 4, device="jax"), torch.randn(4, 4, device="jax")

    @torch_jax.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return lambda: step(x, y).item()


def bare(layers: int) -> Callable[[], None]:
    """A call with as many arrays: parameters, both moments, counts; and gradients come out."""
    shapes = [(4, 4), (4,)] * layers
    arrays = [[jnp.ones(shape) for shape in shapes] for _ in range(3)]
    state = (*arrays, [jnp.zeros(()) for _ in shapes])

    def update(state: tuple, x: jax.Array) -> tuple:
        return jax.tree.map(lambda a: a + 1, state), [a * 2 for a in state[0]], x.sum()

    compiled, x = jax.jit(update, donate_argnums=0), jnp.ones((4, 4))

    def step() -> None:
        nonlocal state, gradients
        state, gradients, loss = compiled(state, x)
        float(loss)

    gradients: list[jax.Array] = []
    return step


def first_step(layers: int) -> float:
    """Seconds from a model on its device to the first loss."""
    torch.ones(2, device="jax").add(1).cpu()
    step = training(layers)
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(first_step(int(sys.argv[1])))
