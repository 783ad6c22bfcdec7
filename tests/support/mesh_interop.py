"""PyTorch modules in programs of JAX over eight virtual devices."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.on_mesh import quick


def _network():
    import jax.numpy as jnp

    import torch_jax

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
    import numpy as np

    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-6)


@quick
def functional_modules_in_shard_map():
    """Gradients of equal weights are sums over the devices, inside and outside, and again."""
    import jax
    from jax.sharding import AxisType
    from jax.sharding import PartitionSpec as P

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


@quick
def functional_modules_of_sharded_arrays():
    """Arrays over a mesh keep to it under ``jax.jit``, and the module's too."""
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import torch_jax

    loss, params, x, expected = _network()
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.device_put(x, NamedSharding(mesh, P("d")))
    for function in (jax.grad(loss), jax.jit(jax.grad(loss))):
        _same(function(jax.device_put(params, NamedSharding(mesh, P())), split), expected)
    net = nn.Linear(16, 8, device="jax")
    torch_jax.shard(net, torch_jax.mesh(data=8), {"weight": ("data", None), "*": ()})
    fn, params, buffers = torch_jax.functional(net)
    assert params["weight"].sharding.spec[0] == "data"
    fn(params, buffers, jax.numpy.ones((2, 16)))
