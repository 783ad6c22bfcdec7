"""What a call of a compiled step costs beyond the bare ``jax.jit`` call with as many buffers.

A chain of 4x4 linear layers and SGD: one layer for the cost of a call, more for the cost of each
tensor that the function captured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

import torch_jax
from benchmarks.timing import sample, spread

TARGET, TARGET_PER_TENSOR = 60.0, 0.5  # microseconds
LAYERS = (1, 40, 160)  # of two tensors each
CALLS, ROUNDS = 20, 150


def run() -> None:
    """Time chains of each length."""
    print("\nOverhead of a compiled step over the bare call (medians of differences, us)")
    print(f"  {'':20} {'jit':>8} {'bare':>8} {'overhead':>9} {'spread':>7} {'target':>7}")
    overheads = {}
    for layers in LAYERS:
        samples = sample({"jit": _ours(layers), "bare": _bare(layers)}, CALLS, ROUNDS)
        jit, bare = samples["jit"], samples["bare"]
        differences = [(a - b) * 1e6 for a, b in zip(jit, bare, strict=True)]
        overheads[layers] = statistics.median(differences)
        print(
            f"  {2 * layers:4} captured tensors {statistics.median(jit) * 1e6:8.1f} "
            f"{statistics.median(bare) * 1e6:8.1f} {overheads[layers]:9.1f} "
            f"{spread(differences):7.0%} {TARGET if layers == 1 else '':>7}",
            flush=True,
        )
    for layers in LAYERS[1:]:
        growth = (overheads[layers] - overheads[1]) / (2 * layers - 2)
        what = f"each tensor of {2 * layers}"
        print(f"  {what:38} {growth:9.2f} {'':7} {TARGET_PER_TENSOR:7}")


def _ours(layers: int) -> Callable[[], object]:
    linears = [torch.nn.Linear(4, 4) for _ in range(layers)]
    model = torch.nn.Sequential(*linears).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(4, 4, device="jax"), torch.randn(4, 4, device="jax")

    @torch_jax.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return lambda: step(x, y)


def _bare(layers: int) -> Callable[[], object]:
    """The same with the same arrays going in and coming out, gradients among them."""
    params = [jnp.ones((4, 4)) / 4, jnp.zeros(4)] * layers
    params = [jnp.array(p, copy=True) for p in params]
    x, y = jnp.ones((4, 4)), jnp.ones((4, 4))

    def loss_of(params: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        for weight, bias in zip(params[::2], params[1::2], strict=True):
            x = x @ weight.T + bias
        return jnp.square(x - y).mean()

    def update(rate, params, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        return [p - rate * g for p, g in zip(params, gradients, strict=True)], gradients, loss

    compiled = jax.jit(update, donate_argnums=1)

    def step() -> None:
        nonlocal params
        params, _, _ = compiled(0.1, params, x, y)

    return step
