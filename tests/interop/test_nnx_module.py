"""PyTorch modules as modules of flax's nnx."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from flax import nnx
from torch import nn

from torch_jax import nnx_from_torch
from torch_jax.memory import storage


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Linear(8, 3)
    )


@pytest.mark.slow
def test_training():
    net = network()
    expected = copy.deepcopy(net)
    model = nnx_from_torch(net)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 6, generator=generator), torch.randint(3, (16,), generator=generator)

    @nnx.jit
    def step(model, optimizer, x, y):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        value, slopes = nnx.value_and_grad(loss)(model)
        optimizer.update(model, slopes)
        return value

    adam = torch.optim.Adam(expected.parameters(), lr=1e-2)
    for _ in range(3):
        adam.zero_grad()
        loss = F.cross_entropy(expected(x), y)
        loss.backward()
        adam.step()
        value = step(model, optimizer, jnp.asarray(x), jnp.asarray(y.int()))
        np.testing.assert_allclose(value, loss.item(), rtol=1e-4)
    statistics = model.tensors["1"].running_mean[...]
    np.testing.assert_allclose(statistics, expected[1].running_mean, rtol=1e-4, atol=1e-6)
    assert isinstance(model.tensors["1"].num_batches_tracked, nnx.BatchStat)
    model.eval()
    evaluated = nnx.jit(lambda model, x: model(x))(model, jnp.asarray(x))
    np.testing.assert_allclose(evaluated, expected.eval()(x).detach(), rtol=1e-3, atol=1e-5)
    assert (net[0].weight == network()[0].weight).all()  # its own tensors are as they were


@pytest.mark.slow
def test_modes_and_keys():
    model = nnx_from_torch(network(0.5).eval(), rngs=nnx.Rngs(0))
    x = jnp.ones((4, 6))
    call = nnx.jit(lambda model, x: model(x))
    assert (call(model, x) == call(model, x)).all()
    model.train()
    assert (call(model, x) != call(model, x)).any()
    again = [model(x, rngs=nnx.Rngs(7)) for _ in range(2)]
    assert (again[0] == again[1]).all()


def test_kinds_of_state_and_methods():
    net = network().to("jax")
    net[0].requires_grad_(False)
    model = nnx_from_torch(net)
    kinds = {
        type(v)
        for v in jax.tree.leaves(nnx.state(model), is_leaf=lambda v: isinstance(v, nnx.Variable))
    }
    assert kinds == {nnx.Param, nnx.BatchStat, nnx.Variable}
    weight = model.tensors["3"].weight
    assert (
        weight[...].unsafe_buffer_pointer()
        == storage.memory_of(net[3].weight).unsafe_buffer_pointer()
    )
    assert not isinstance(model.tensors["0"].weight, nnx.Param)
    graph, state = nnx.split(model)
    merged = nnx.merge(graph, jax.tree.map(jnp.zeros_like, state))
    assert (merged(jnp.ones((2, 6))) == 0).all()
    assert model(jnp.ones((2, 6)), method=lambda module, x: module[0](x)).shape == (2, 8)
    with pytest.raises(TypeError, match="Module"):
        nnx_from_torch(torch.sin)
