"""PyTorch modules in programs of JAX over eight devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from torch import nn

import torch_jax


def _network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    fn, params, buffers = torch_jax.functional(net)
    x = torch.randn(16, 4)

    def loss(params, x):
        return (fn(params, buffers, x)[0] ** 2).mean()

    (net(x) ** 2).mean().backward()
    expected = {name: jnp.asarray(p.grad) for name, p in net.named_parameters()}
    return loss, params, jnp.asarray(x), expected


def _same(actual, expected):
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_functional_modules_in_shard_map():
    """Gradients of equal weights are sums over the devices, inside and outside, and again."""
    loss, params, x, expected = _network()
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))

    def mean(params, x):
        return jax.lax.pmean(loss(params, x), "d")

    specs = {"mesh": mesh, "in_specs": (P(), P("d")), "out_specs": P()}
    whole = jax.shard_map(mean, **specs)
    _same(jax.jit(jax.grad(whole))(params, x), expected)
    _same(jax.jit(jax.shard_map(jax.grad(mean), **specs))(params, x), expected)

    def penalty(function, params):
        return sum((g**2).sum() for g in jax.grad(function)(params, x).values())

    _same(
        jax.jit(jax.grad(lambda params: penalty(whole, params)))(params),
        jax.jit(jax.grad(lambda params: penalty(loss, params)))(params),
    )


@pytest.mark.slow
def test_functional_modules_of_sharded_arrays():
    """Arrays over a mesh keep to it under ``jax.jit``, and the module's too."""
    loss, params, x, expected = _network()
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    split = jax.device_put(x, NamedSharding(mesh, P("d")))
    for function in (jax.grad(loss), jax.jit(jax.grad(loss))):
        _same(function(jax.device_put(params, NamedSharding(mesh, P())), split), expected)
    net = nn.Linear(16, 8, device="jax")
    torch_jax.shard(net, torch_jax.mesh(data=8), {"weight": ("data", None), "*": ()})
    fn, params, buffers = torch_jax.functional(net)
    assert params["weight"].sharding.spec[0] == "data"
    fn(params, buffers, jnp.ones((2, 16)))


@pytest.mark.slow
def test_programs_of_others_make_tensors_like_what_they_trace():
    """Where shardings are in use, a graph and a function of JAX have no inputs to ask for one."""

    def function(x):
        return torch.zeros_like(x * 2) + torch.empty_like(x).fill_(3)

    torch_jax.shard(torch.ones(8, device="jax"), torch_jax.mesh(data=8), ("data",))
    found = jax.jit(torch_jax.to_jax_function(function))(jnp.ones(3))
    assert found.tolist() == [3] * 3
    compiled = torch.compile(function, backend="jax")(torch.ones(3, device="jax"))
    assert compiled.tolist() == [3] * 3


def test_what_a_trace_has_left_behind_is_no_array_over_a_mesh():
    torch_jax.shard(torch.ones(8, device="jax"), torch_jax.mesh(data=8), ("data",))
    kept = []
    jax.jit(torch_jax.to_jax_function(lambda x: kept.append(x * 2) or x.sum()))(jnp.ones(3))
    try:
        torch_jax.to_jax_function(lambda x: x + kept[0])(jnp.ones(3))
    except torch_jax.NotTraceableError as error:
        assert "left it behind" in str(error), error
    else:
        raise AssertionError("a tensor without elements was added")
