"""JAX differentiates the operators: PyTorch's derivatives at kinks, edges and ties."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_jax
from torch_jax.ops.derivatives import differentiated_as, slope

VALUES = [0.0, -1.0, 1.0, 0.0, 6.0, 1.0, -3.0, 3.0]
# From torch 2.14 on a bound has another slope than JAX's derivatives know: 0, or half of it.
BESIDE = 0.0 if torch.__version__ < (2, 14) else 0.4
INDICES = torch.tensor([1, 0, 1, 2, 1])

FUNCTIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "selu": F.selu,
    "logsigmoid": F.logsigmoid,
    "elu of large numbers": lambda x: F.elu(x * 1e4),
    "softplus of large numbers": lambda x: F.softplus(x * 1e4),
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-1 - BESIDE, 1 + BESIDE),
    "clamp by tensors": lambda x: x.clamp(x.flip(0) + BESIDE, x.roll(1) + BESIDE / 2),
    "max of a dim": lambda x: x.reshape(2, 4).max(1).values,
    "max": torch.max,
    "amax": lambda x: x.reshape(2, 4).amax(1),
    "median": torch.median,
    "norm of zeros": lambda x: (x * 0).norm() + x.norm(),
    "norm by 3": lambda x: (x * 0).norm(3) + x.norm(3),
    "std of constants": lambda x: (x * 0).std() + x.std(),
    "cdist of itself": lambda x: torch.cdist(x.reshape(4, 2), x.reshape(4, 2)),
    "cdist of many": lambda x: torch.cdist(x.repeat(8).reshape(32, 2), x.repeat(8).reshape(32, 2)),
    "atan2": lambda x: torch.atan2(x, x * 0),
    "xlogy": lambda x: torch.xlogy(x, x * x + 2),
    "pow": lambda x: x.abs() ** x,
    "padding_idx": lambda x: F.embedding(INDICES.to(x.device), x.reshape(4, 2), padding_idx=1),
    "scale_grad_by_freq": lambda x: F.embedding(
        INDICES.to(x.device), x.reshape(4, 2), scale_grad_by_freq=True
    ),
    "embedding_bag": lambda x: F.embedding_bag(
        INDICES.to(x.device)[None], x.reshape(4, 2), mode="max"
    ),
}


def weighted(function, x):
    y = function(x)
    weights = torch.arange(1, y.numel() + 1, dtype=y.dtype, device=y.device).reshape(y.shape)
    return (y * weights).sum()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_pytorchs(name):
    def function(x):
        return weighted(FUNCTIONS[name], x)

    x = torch.tensor(VALUES, requires_grad=True)
    function(x).backward()
    run, given = torch_jax.to_jax_function(function, derivatives="jax"), jnp.asarray(VALUES)

    @jax.jit
    def derivatives(x):
        batched = jax.vmap(jax.grad(run))(jnp.stack([x, x + 0.25]))
        return jax.grad(run)(x), jax.jacfwd(run)(x), batched[0]

    for found in derivatives(given):
        np.testing.assert_allclose(found, x.grad, rtol=2e-5, atol=1e-5)


def test_a_model_trained_by_jax():
    """Zeros before a ReLU and padding get no gradient, in the way that torchax's programs go."""
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=0), nn.ReLU(), nn.Linear(3, 1))
    words = torch.tensor([[0, 1], [2, 0]])
    model(words).sum().backward()
    fn, params, buffers = torch_jax.functional(model, derivatives="jax")
    found = jax.grad(lambda p: fn(p, buffers, jnp.asarray(words))[0].sum())(params)
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad, rtol=1e-5)


def test_a_stated_derivative():
    @slope(lambda x, y: 2 * x, lambda x, y: 10)
    def by_slopes(x, y):
        return x * x + y

    @differentiated_as(lambda x, at, times: (x[at] * times, at))
    def picked(x, at, times):
        return x[at] * 0, at

    assert jax.grad(by_slopes, (0, 1))(3.0, jnp.float32(1)) == (6.0, 10.0)
    assert jax.grad(jax.grad(by_slopes))(3.0, 1.0) == 2.0

    @jax.jit
    def of_integers_in_a_trace(x, at):  # a derivative must not keep the tracer of a position
        return jax.vjp(lambda x: picked(x, at, times=3.0)[0], x)[1](jnp.ones(2))[0]

    assert of_integers_in_a_trace(jnp.ones(3), jnp.array([2, 2])).tolist() == [0, 0, 6]
    plain = jax.make_jaxpr(lambda at: picked(at, at, times=3))(jnp.arange(2))
    assert "custom" not in str(plain)
