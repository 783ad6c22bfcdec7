"""A training step of a GPT by ``Optax``, by ``torch.optim.AdamW``, and by JAX and optax alone."""

from __future__ import annotations

from typing import Any

import jax
import optax
import torch

import torch_jax
from benchmarks import cases, reference
from benchmarks.timing import compare, sample

ROUNDS, CALLS = 12, 2
TX = optax.adamw(reference.ADAMW["lr"], weight_decay=reference.ADAMW["weight_decay"])
OURS, TORCH, BARE = "Optax", "torch.optim.AdamW", "JAX and optax"


def _by_optax(parameters: Any) -> torch.optim.Optimizer:
    return torch_jax.optim.Optax(parameters, TX)


def _bare_step(params: reference.Params, state: Any, batch: reference.Batch) -> Any:
    loss, grads = jax.value_and_grad(reference.gpt_loss)(params, batch)
    updates, state = TX.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


CASE = cases.GPT._replace(optimizer=_by_optax, jax_step=_bare_step, jax_init=TX.init)


def _eager_step(case: cases.Case) -> cases.Call:
    """The optimizer's step alone, by itself, of gradients that stay."""
    model, _ = case.made()
    model = model.to("jax")
    optimizer = case.optimizer(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape).to("jax")

    def step() -> None:
        optimizer.step()
        torch.jax.synchronize()

    return step


def run() -> None:
    """Time whole compiled steps, and the eager step of each optimizer."""
    whole = {
        OURS: cases.training(CASE, "jax", compiled=True),
        TORCH: cases.training(cases.GPT, "jax", compiled=True),
        BARE: cases.bare_training(CASE),
    }
    compare("GPT, compiled training step", sample(whole, CALLS, ROUNDS), {TORCH: 1.0, BARE: 1.0})
    eager = {OURS: _eager_step(CASE), TORCH: _eager_step(cases.GPT)}
    compare("GPT, the optimizer's step, eager", sample(eager, CALLS, ROUNDS), {TORCH: 0.5})


if __name__ == "__main__":
    run()
