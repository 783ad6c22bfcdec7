"""Training over eight devices in each way to run it, and the programs that it comes to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from torch import nn

import torch_jax
from tests.distributed.mesh.on_mesh import (
    RULES,
    adamw,
    batches,
    check_eager_training,
    check_training,
    collectives,
    expected_losses,
    gathered,
    grid,
    lazily,
    on_data,
    purely,
    same,
    shard,
    spec,
    train,
)


@pytest.mark.slow
def test_models_train_eagerly_in_other_orders():
    net, expected = expected_losses()
    check_eager_training(net, expected, on_cpu=False, optimizer_first=False, foreach=False)


@pytest.mark.slow
def test_models_train_recorded():
    def fused(step: Callable) -> Callable:
        def run(*args: Any) -> Any:
            with torch_jax.fused():
                return step(*args)

        return run

    net, expected = expected_losses(8)
    for runs in (lazily, fused, torch_jax.jit):  # the first calls of a compiled one are recorded
        one = copy.deepcopy(net).to("jax")
        optimizer = adamw(one, foreach=True)
        torch_jax.shard(one, grid(), RULES)
        losses = train(one, optimizer, on_data, runs, 8)
        check_training(one, losses, expected, optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [torch_jax.jit, purely])
def test_a_compiled_step_takes_parameters_that_are_sharded_anew(runs):
    net, expected = expected_losses(8)
    net.to("jax")
    optimizer = adamw(net)

    @runs
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    for at, (x, y) in enumerate(batches(8)):
        if at == 4:
            torch_jax.shard(net, grid(), RULES, optimizer)
        losses.append(step(x.to("jax"), y.to("jax")).item())
    same(torch.tensor(losses), torch.tensor(expected))
    assert (
        spec(net.up.weight) == ("model", "data") == spec(optimizer.state[net.up.weight]["exp_avg"])
    )


@pytest.mark.slow
def test_compiled_graphs_keep_shardings():
    net, expected = expected_losses()
    net.to("jax")
    torch_jax.shard(net, grid(), RULES)
    optimizer = adamw(net)
    compiled = torch.compile(net, backend="jax")
    losses = []
    for x, y in batches(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(on_data(x)).flatten(0, 1), on_data(y).flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    check_training(net, losses, expected, optimizer)

    def write(t: torch.Tensor) -> None:
        t.copy_(torch.ones(8, 4, device="jax"))

    x = shard(torch.zeros(8, 4), "data", "model")
    torch.compile(write, backend="jax")(x)
    assert spec(x) == ("data", "model") and x.sum().item() == 32


def by_hand(net: nn.Module, mesh: Any, fsdp: bool) -> Any:
    """A training step of an MLP with AdamW as one writes it in JAX."""
    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    params = [
        jax.device_put(p.detach().numpy(), split if fsdp else whole) for p in net.parameters()
    ]
    moments = [[jax.device_put(jnp.zeros(p.shape), p.sharding) for p in params] for _ in range(2)]

    def loss(params: list, x: Any, y: Any) -> Any:
        w1, b1, w2, b2 = params
        return ((jax.nn.relu(x @ w1.T + b1) @ w2.T + b2 - y) ** 2).mean()

    def step(params: list, m: list, v: list, t: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        m = [0.9 * old + 0.1 * g for old, g in zip(m, grads, strict=True)]
        v = [0.999 * old + 0.001 * g * g for old, g in zip(v, grads, strict=True)]
        params = [
            p * (1 - 1e-4) - 1e-2 * (a / (1 - 0.9**t)) / (jnp.sqrt(b / (1 - 0.999**t)) + 1e-8)
            for p, a, b in zip(params, m, v, strict=True)
        ]
        return params, m, v, value

    kept = [p.sharding for p in params]
    run = jax.jit(step, donate_argnums=(0, 1, 2), out_shardings=(kept, kept, kept, None))
    batch = [jax.device_put(jnp.zeros((64, n)), split) for n in (64, 16)]
    return run.lower(params, *moments, 1.0, *batch).compile()


def compiled_step(net: nn.Module, mesh: Any, fsdp: bool) -> Any:
    """The same of torch_jax."""
    torch_jax.shard(net, mesh, ("data",) if fsdp else ())
    optimizer = adamw(net)

    @torch_jax.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x, y = (torch_jax.shard(torch.zeros(64, n), mesh, ("data",)) for n in (64, 16))
    step(x, y)
    return step.lower(x, y)


@pytest.mark.slow
def test_collectives_and_memory_are_those_of_jax_written_by_hand():
    mesh = torch_jax.mesh(data=8)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
    elements = sum(p.numel() for p in net.parameters())
    for fsdp in (False, True):
        theirs, ours = by_hand(net, mesh, fsdp), compiled_step(copy.deepcopy(net), mesh, fsdp)
        expected, found = collectives(theirs.as_text()), collectives(ours.as_text("hlo"))
        if fsdp:  # a weight may be gathered once more, for the backward pass
            assert found["all-reduce", 68] == expected["all-reduce", 68] == 1
            assert gathered(found) <= gathered(expected) + 4 * elements
        else:
            assert found == expected == {("all-reduce", 4 * elements + 4): 1}
        ideal = 3 * 4 * elements / (8 if fsdp else 1) + 4 * 8 * (64 + 16)
        memory = ours.memory_analysis()
        assert memory.argument_size_in_bytes <= 1.1 * ideal
        assert memory.output_size_in_bytes <= 1.1 * ideal
