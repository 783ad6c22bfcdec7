"""The cost of one eager operator over the bare ``jax.jit`` call that does the same, on 4x4."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from benchmarks.timing import compare, sample

TITLE, BARE = "Eager operators on 4x4 float32", "bare jax.jit"
TARGET = 2.4


def run(rounds: int = 200) -> None:
    """Time each operator beside its bare jitted twin."""
    x, y = torch.ones(4, 4, device="jax"), torch.ones(4, 4, device="jax")
    transposed = y.t()
    a, b = jnp.ones((4, 4)), jnp.ones((4, 4))
    mul, add, relu = jax.jit(jnp.multiply), jax.jit(jnp.add), jax.jit(jax.nn.relu)
    add_one = jax.jit(lambda a: a + 1)
    mm, mm_transposed = jax.jit(jnp.matmul), jax.jit(lambda a, b: a @ b.T)
    pairs = {
        "x * y": (lambda: x * y, lambda: mul(a, b)),
        "x + 1": (lambda: x + 1, lambda: add(a, 1.0)),
        "x + 1, a constant": (lambda: x + 1, lambda: add_one(a)),
        "relu(x)": (lambda: torch.relu(x), lambda: relu(a)),
        "mm(x, y)": (lambda: torch.mm(x, y), lambda: mm(a, b)),
        "mm(x, view)": (lambda: torch.mm(x, transposed), lambda: mm_transposed(a, b)),
        "mm(x, y.t())": (lambda: torch.mm(x, y.t()), lambda: mm_transposed(a, b)),
    }
    with torch.no_grad():
        for what, (ours, bare) in pairs.items():
            samples = sample({what: ours, BARE: bare}, calls=200, rounds=rounds)
            compare(TITLE, samples, {BARE: TARGET}, "us", 1e6)
