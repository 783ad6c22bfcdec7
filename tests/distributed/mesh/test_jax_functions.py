"""JAX functions that are called with tensors over eight devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import torch_jax
from tests.distributed.mesh.on_mesh import grid, same, shard, spec

_P = jax.sharding.PartitionSpec


@pytest.mark.slow
def test_jax_functions_take_parts_and_give_parts():
    """With ``shard_map`` and a collective inside, forwards and backwards."""

    def of_jax(x: Any, w: Any) -> Any:
        def part(x: Any, w: Any) -> Any:
            return jnp.tanh(jax.lax.psum(x @ w, "model"))

        specs = (_P("data", "model"), _P("model", None))
        return jax.shard_map(part, mesh=grid(), in_specs=specs, out_specs=_P("data"))(x, w)

    x, w = torch.linspace(-1, 1, 32).view(8, 4), torch.linspace(-1, 1, 16).view(4, 4)
    on_mesh = shard(x, "data", "model").requires_grad_(), shard(w, "model").requires_grad_()
    x.requires_grad_(), w.requires_grad_()
    found, expected = torch_jax.call_jax(of_jax, *on_mesh), torch.tanh(x @ w)
    assert spec(found) == ("data",), spec(found)
    same(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    for own, other in zip(on_mesh, (x, w), strict=True):
        same(own.grad, other.grad)
