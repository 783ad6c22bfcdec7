"""``torch.compile(backend="jax")`` beside hand-written jitted JAX, and inductor on the CPU.

The optimizer is compiled too. The overhead is that of a compiled call with 50 tensors over the
bare ``jax.jit`` call with as many arrays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from benchmarks import cases
from benchmarks.cases import CASES
from benchmarks.models import BATCH, LENGTH, WIDTH
from benchmarks.models import LAYERS as BLOCKS
from benchmarks.timing import compare, sample, spread, wait

ROUNDS, CALLS = 12, 2
OURS, BARE, INDUCTOR = 'backend="jax"', "hand-written JAX", "inductor, CPU"
TARGET = 150.0  # microseconds
LAYERS = 25  # of two tensors each


def run(name: str = "gpt") -> None:
    """Time the overhead of a call, then inference and training steps of a model."""
    overhead()
    gpt = f"GPT, {BLOCKS} layers, width {WIDTH}, batch {BATCH}x{LENGTH}"
    title, case = gpt if name == "gpt" else name, CASES[name]
    forward = {
        OURS: inference(case, "jax", "jax"),
        BARE: cases.bare_inference(case),
        INDUCTOR: inference(case, "cpu", "inductor"),
    }
    compare(f"{title}: inference", sample(forward, CALLS, ROUNDS), {BARE: 1.05})
    steps = {
        OURS: training(case, "jax", "jax"),
        BARE: cases.bare_training(case),
        INDUCTOR: training(case, "cpu", "inductor"),
    }
    compare(f"{title}: training step", sample(steps, CALLS, ROUNDS), {BARE: 1.15})


def inference(case: cases.Case, device: str, backend: str) -> cases.Call:
    """A forward pass, without gradients, of a model that is compiled by ``backend``."""
    model, (inputs, _) = case.made()
    model, inputs = model.to(device).eval(), inputs.to(device)
    compiled = torch.compile(model, backend=backend)

    @torch.no_grad()
    def forward() -> torch.Tensor:
        logits = compiled(inputs)
        if device == "jax":
            wait(logits)
        return logits

    return forward


def training(case: cases.Case, device: str, backend: str) -> cases.Call:
    """A training step whose model and optimizer are compiled by ``backend``."""
    model, batch = case.made()
    model = model.to(device)
    inputs, targets = (tensor.to(device) for tensor in batch)
    optimizer = case.optimizer(model.parameters())
    compiled = torch.compile(model, backend=backend)
    update = torch.compile(optimizer.step, backend=backend)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = case.loss(compiled(inputs), targets)
        loss.backward()
        update()
        return loss.item()

    return step


def overhead() -> None:
    """Time a chain of 4x4 linear layers."""
    samples = sample({"compiled": _chain(), "bare": _bare_chain()}, 20, 150)
    (compiled, mode), (bare, _) = samples["compiled"], samples["bare"]
    pairs = zip(compiled, bare, strict=True)
    differences = [(ours - bare) * 1e6 for ours, bare in pairs]
    print(
        f"\nOverhead of a compiled call with {2 * LAYERS} tensors over the bare call: "
        f"{statistics.median(differences):.1f} us (spread {spread(differences):.0%}, "
        f"target {TARGET:.0f}), {mode}",
        flush=True,
    )


def _chain() -> Callable[[], object]:
    layers = [torch.nn.Linear(4, 4) for _ in range(LAYERS)]
    model = torch.compile(torch.nn.Sequential(*layers).to("jax"), backend="jax")
    x = torch.randn(4, 4, device="jax")

    @torch.no_grad()
    def call() -> object:
        return model(x)

    return call


def _bare_chain() -> Callable[[], object]:
    params = [jnp.array(p, copy=True) for p in [jnp.ones((4, 4)) / 4, jnp.zeros(4)] * LAYERS]

    @jax.jit
    def forward(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight, bias in zip(params[::2], params[1::2], strict=True):
            x = x @ weight.T + bias
        return x

    x = jnp.ones((4, 4))
    return lambda: forward(params, x)
