"""The short way of compiled calls: results, layouts and numbers are those of the first call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_jax
from torch_jax.core.x64 import x64
from torch_jax.eager.given_numbers import number_input


def test_later_calls_give_the_same_results():
    x = torch.randn(3, 5)
    y = x.to("jax")
    for n in range(300):
        assert torch.equal((y * y).cpu(), x * x)
        assert torch.equal((y + (n % 3)).cpu(), x + (n % 3))
    assert torch.equal((y.view(torch.int32) * 2).cpu(), x.view(torch.int32) * 2)


def test_an_array_in_another_order_is_taken_in_its_own():
    from jax.experimental.layout import Format, Layout

    plain = jnp.arange(6.0).reshape(2, 3)
    turned = jax.device_put(plain, Format(Layout((1, 0)), plain.sharding))
    x, y = torch_jax.from_jax(plain), torch_jax.from_jax(turned)
    for _ in range(300):
        x + x
    assert torch.equal((y + y).cpu(), (x + x).cpu())


@pytest.mark.parametrize(
    "one, other",
    [(0.0, -0.0), (1, True), (1, 1.0), (0, False), (complex(1, 0.0), complex(1, -0.0))],
)
def test_equal_numbers_are_told_apart(one, other):
    with x64():
        for number in (one, other, one, other, one, other):
            given = np.asarray(number_input(number))
            assert given.dtype == np.asarray(jnp.asarray(number)).dtype
            assert given.tobytes() == np.asarray(jnp.asarray(number)).tobytes()


def test_a_nan_is_kept_and_zeros_keep_their_sign():
    x = torch.tensor([2.0, -2.0]).to("jax")
    for _ in range(4):
        assert (x * float("nan")).isnan().all()
        assert (x * 0.0).signbit().tolist() == [False, True]
        assert (x * -0.0).signbit().tolist() == [True, False]
    assert isinstance(number_input(float("nan")), jax.Array)
    assert isinstance(number_input(0.0), jax.Array)
