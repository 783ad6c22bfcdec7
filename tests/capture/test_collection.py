"""Compiled calls and Python's garbage collector."""

from __future__ import annotations

import gc

import torch_jax
from tests.support.values import ones
from torch_jax import config


def test_arrays_that_are_replaced_start_no_collection():
    weights = [ones(1) for _ in range(60)]

    def double() -> None:
        for weight in weights:
            weight.mul_(2)

    def note(phase: str, _: dict) -> None:
        phases.append(phase)

    step = torch_jax.jit(double, pure=True)
    step()
    thresholds, phases = gc.get_threshold(), []
    gc.set_threshold(40, *thresholds[1:])
    gc.callbacks.append(note)
    try:
        with config.temporarily("jit_check_every", 0):
            for _ in range(20):
                step()
        assert gc.get_threshold()[0] == 40
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
    assert phases.count("start") < 10
    assert all(weight.item() == 2**21 for weight in weights[:2])
