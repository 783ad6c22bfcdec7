"""examples/trainers: each library trains on the device as on the CPU, a step as one program too."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest

import torch_jax
from torch_jax import config

QUICK = ("with_accelerate", "with_lightning", "with_ignite")
# Their imports, and the models that they train, take many seconds.
SLOW = ("plain", "with_transformers", "with_peft", "with_trl")
LOOKS = {"with_trl": 5}  # SFTTrainer reads the entropy and the accuracy of each batch, for its log


def program(name: str) -> Any:
    return importlib.import_module(f"examples.trainers.{name}")


@functools.cache
def on_cpu(name: str, **options: Any) -> list[float]:
    return program(name).main("cpu", **options)


each = pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)


@pytest.mark.slow
@each
def test_losses_are_those_of_the_cpu(name):
    assert program(name).main("jax") == pytest.approx(on_cpu(name), rel=1e-4)


@pytest.mark.slow
@each
def test_losses_of_whole_steps_are_those_of_the_cpu(name):
    torch_jax.reset_metrics()
    # as on accelerators: a look at labels ends a program
    with config.temporarily("check_indices", "never"):
        losses = program(name).main("jax", whole_step=True)
    graphs = torch_jax.metrics()["graphs"]
    assert losses == pytest.approx(on_cpu(name), rel=1e-4)
    steps = len(losses) - (name in ("with_lightning", "with_ignite"))  # their last is a metric
    assert graphs == steps * (1 + LOOKS.get(name, 0))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_accelerate_in_mixed_precision(precision):
    losses = program("with_accelerate").main("jax", mixed_precision=precision)
    assert losses == pytest.approx(on_cpu("with_accelerate"), rel=5e-3)
    if precision == "bf16":  # which the CPU has, too: the same roundings
        same = on_cpu("with_accelerate", mixed_precision=precision)
        assert losses == pytest.approx(same, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"precision": "16-mixed"},
        {"precision": "bf16-mixed"},
        {"accelerator": "gpu", "accumulate_grad_batches": 2},
        {"accelerator": "jax", "strategy": "jax_spmd"},
    ],
    ids=str,
)
def test_options_of_lightning(options):
    losses = program("with_lightning").main("jax", **options)
    plain = {name: value for name, value in options.items() if name == "accumulate_grad_batches"}
    assert losses[:-1] == pytest.approx(on_cpu("with_lightning", **plain)[:-1], rel=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"fp16": True},
        {"bf16": True},
        {"torch_compile": True},
        {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1},
    ],
    ids=str,
)
def test_options_of_the_trainer(options):
    losses = program("with_transformers").main("jax", **options)
    on_every_device = options.keys() & {"gradient_accumulation_steps", "max_grad_norm"}
    plain = {name: options[name] for name in on_every_device}
    assert losses == pytest.approx(on_cpu("with_transformers", **plain), rel=2e-3)
