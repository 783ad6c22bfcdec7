"""Arrays over eight devices that cross between JAX and PyTorch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch

import torch_jax
from tests.distributed.mesh.on_mesh import grid, purely, same, says, shard, spec


def test_arrays_keep_their_shardings_both_ways():
    sharded = jax.sharding.NamedSharding(grid(), jax.sharding.PartitionSpec("data", "model"))
    host = torch.arange(32.0).view(8, 4)
    array = jax.device_put(host.numpy().copy(), sharded)
    x = torch_jax.from_jax(array)
    assert spec(x) == ("data", "model")
    given = torch_jax.to_jax(x)
    assert given is array and given.sharding == sharded
    part = given.addressable_shards[3].data
    for step in (torch_jax.jit(lambda t: t.mul_(2)), purely(lambda t: t.mul_(2))):
        for _ in range(3):
            step(x)
    same(x, host * 64)
    assert spec(x) == ("data", "model") and torch_jax.to_jax(x).sharding == sharded
    assert part.tolist() == host.numpy()[array.addressable_shards[3].index].tolist()
    assert given.tolist() == host.tolist()


@pytest.mark.slow
def test_sharded_tensors_are_arrays_for_jax():
    x = shard(torch.arange(32.0).view(8, 4), "data", None)
    found = jax.jit(lambda a: jnp.sin(a).sum(1))(torch_jax.to_jax(x))
    same(torch_jax.from_jax(found), torch.arange(32.0).view(8, 4).sin().sum(1))


def test_arrays_of_two_places_say_so():
    one, other = (
        torch_jax.from_jax(jax.device_put(torch.ones(4).numpy(), jax.devices()[at]))
        for at in (3, 5)
    )
    says(RuntimeError, "Expected all tensors to be on the same device", lambda: one + other)
    x, y = torch.ones(4).to("jax"), shard(torch.ones(4, 2), "data", "model")
    same(x + one, torch.full((4,), 2.0))
    same(y.sum(1) + one, torch.full((4,), 3.0))
