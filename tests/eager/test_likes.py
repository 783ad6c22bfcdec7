"""Factories of tensors like one of the device, asked for on another device."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch

import torch_jax
from tests.support.executors import by


def on(device: str, x: torch.Tensor) -> list[torch.Tensor]:
    return [
        torch.zeros_like(x, device=device),
        torch.ones_like(x, device=device, dtype=torch.int64),
        torch.full_like(x, 3.5, device=device),
        torch.rand_like(x, device=device),
        torch.randint_like(x, 2, 9, device=device),
    ]


@pytest.mark.parametrize("device", ["cpu", "meta", "jax"])
def test_they_are_where_they_were_asked_for(device):
    x = torch.randn(3, 4).t()
    torch.manual_seed(0)
    made = on(device, x.to("jax"))
    torch.manual_seed(0)
    expected = on("cpu" if device != "meta" else device, x)
    for a, b in zip(made, expected, strict=True):
        assert (a.device.type, a.dtype, a.stride()) == (device, b.dtype, b.stride())
    for at in () if device == "meta" else range(3 if device == "jax" else 5):
        assert torch.equal(made[at].cpu(), expected[at])


@pytest.mark.parametrize("executor", ["eager", "lazy", "jit"])
def test_on_the_cpu_within_a_function(executor):
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones_like(x, device="cpu"), x + 1

    run = torch_jax.jit(function) if executor == "jit" else by(executor, function)
    for _ in range(3):
        ones, more = run(torch.zeros(2, device="jax"))
        assert ones.device.type == "cpu" and ones.tolist() == more.tolist() == [1, 1]


def test_a_real_tensor_is_made_like_a_fake_one():
    """Dynamo asks for one to run an operator that has no meta function."""
    with FakeTensorMode():
        fake = torch.ones(3, 2, device="jax")
    with no_dispatch():
        assert torch.zeros_like(fake, device="jax").tolist() == [[0.0, 0.0]] * 3
