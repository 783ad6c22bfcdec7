"""Time a call of a pure step beside the bare ``jax.jit`` call with as many arrays.

A chain of 4x4 linear layers and an optimizer: one layer for the cost of a call, more for the cost
of each tensor that the function captured. ``python -m benchmarks.jit_overhead AdamW 800`` measures
a chain of another length, which takes minutes to compile.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

import torch_jax
from benchmarks.timing import note, sample, spread

TARGET, TARGET_PER_TENSOR, TARGET_RATIO = 60.0, 0.5, 2.5  # microseconds, and times the bare call
# layers of two tensors each; AdamW has three more arrays for each of these
CHAINS = {"SGD": (1, 40, 160), "AdamW": (1, 40, 200)}
SECONDS = 6.0  # about, of timing for each chain
MANY = 100  # arrays from which on the ratio counts, not the cost of one call

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


def run() -> None:
    """Time chains of each length."""
    print("\nOverhead of a pure step over the bare call (medians; differences in us)")
    print(
        f"  {'':26} {'jit':>8} {'bare':>8} {'overhead':>9} {'spread':>7} {'target':>7} {'ratio':>7}"
        "  mode"
    )
    for optimizer, lengths in CHAINS.items():
        overheads = {layers: measure(optimizer, layers) for layers in lengths}
        for layers in lengths[1:]:
            arrays = _arrays(optimizer, layers)
            growth = (overheads[layers] - overheads[1]) / (arrays - _arrays(optimizer, 1))
            what = f"{optimizer}, each array of {arrays}"
            print(f"  {what:44} {growth:9.2f} {'':7} {TARGET_PER_TENSOR:7}")


def measure(optimizer: str, layers: int) -> float:
    """Time one chain, and print a line; the median overhead in microseconds."""
    contenders = {"jit": training(optimizer, layers), "bare": BARE[optimizer](layers)}
    arrays = _arrays(optimizer, layers)
    calls = max(1, 1000 // (arrays + 50))
    rounds = max(20, int(SECONDS / (calls * (1e-4 + 2e-5 * arrays))))
    samples = sample(contenders, calls, rounds)
    (jit, mode), (bare, _) = samples["jit"], samples["bare"]
    differences = [(a - b) * 1e6 for a, b in zip(jit, bare, strict=True)]
    ratios = [a / b for a, b in zip(jit, bare, strict=True)]
    overhead, ratio = statistics.median(differences), statistics.median(ratios)
    what = f"{optimizer}, {arrays} captured"
    title = "Overhead of a pure step over the bare call"
    wanted = TARGET_RATIO if arrays >= MANY else None
    note(title, what, "bare JAX", ratio, wanted, mode)
    print(
        f"  {what:26} {statistics.median(jit) * 1e6:8.1f} {statistics.median(bare) * 1e6:8.1f} "
        f"{overhead:9.1f} {spread(differences):7.0%} {TARGET if layers == 1 else '':>7} "
        f"{ratio:6.2f}x  {mode}",
        flush=True,
    )
    return overhead


def _arrays(optimizer: str, layers: int) -> int:
    """How many arrays a step captures: parameters, and the optimizer's state of them."""
    return 2 * layers * {"SGD": 1, "AdamW": 4}[optimizer]


def training(optimizer: str, layers: int) -> Callable[[], torch.Tensor]:
    """A step of a chain of layers, as PyTorch's users write it."""
    linears = [torch.nn.Linear(4, 4) for _ in range(layers)]
    model = torch.nn.Sequential(*linears).to("jax")
    steps = OPTIMIZERS[optimizer](model.parameters())
    x, y = torch.randn(4, 4, device="jax"), torch.randn(4, 4, device="jax")

    @torch_jax.jit(pure=True)
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        steps.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        steps.step()
        return loss

    return lambda: step(x, y)


Arrays = list[jax.Array]


def _loss_of(params: Arrays, x: jax.Array, y: jax.Array) -> jax.Array:
    for weight, bias in zip(params[::2], params[1::2], strict=True):
        x = x @ weight.T + bias
    return jnp.square(x - y).mean()


def _params(layers: int) -> Arrays:
    return [jnp.array(p, copy=True) for p in [jnp.ones((4, 4)) / 4, jnp.zeros(4)] * layers]


def _bare_sgd(layers: int) -> Callable[[], object]:
    """The same with the same arrays going in and coming out, gradients among them."""
    params, x, y = _params(layers), jnp.ones((4, 4)), jnp.ones((4, 4))

    def update(rate, params, x, y):
        loss, gradients = jax.value_and_grad(_loss_of)(params, x, y)
        return [p - rate * g for p, g in zip(params, gradients, strict=True)], gradients, loss

    compiled = jax.jit(update, donate_argnums=1)
    gradients = None

    def step() -> None:
        nonlocal params, gradients
        params, gradients, _ = compiled(0.1, params, x, y)

    return step


def _bare_adamw(layers: int) -> Callable[[], object]:
    """The same, with both moments and a count for each parameter, as PyTorch has them."""
    params, x, y = _params(layers), jnp.ones((4, 4)), jnp.ones((4, 4))
    first, second = ([jnp.zeros_like(p) for p in params] for _ in range(2))
    counts = [jnp.zeros(()) for _ in params]

    def updated(rate, p, m, v, count, g):
        count = count + 1
        m, v = m + 0.1 * (g - m), 0.999 * v + 0.001 * g * g
        root = jnp.sqrt(v) / jnp.sqrt(1 - 0.999**count) + 1e-8
        return p * (1 - rate * 0.01) - rate / (1 - 0.9**count) * m / root, m, v, count

    def update(rate, params, first, second, counts, x, y):
        loss, gradients = jax.value_and_grad(_loss_of)(params, x, y)
        each = zip(params, first, second, counts, gradients, strict=True)
        new = zip(*(updated(rate, *one) for one in each), strict=True)
        return [*map(list, new)], gradients, loss

    compiled = jax.jit(update, donate_argnums=(1, 2, 3, 4))
    gradients = None

    def step() -> None:
        nonlocal params, first, second, counts, gradients
        (params, first, second, counts), gradients, _ = compiled(
            1e-3, params, first, second, counts, x, y
        )

    return step


BARE = {"SGD": _bare_sgd, "AdamW": _bare_adamw}


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]))
