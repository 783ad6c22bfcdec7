"""Processes with several devices each as one mesh: prints "well" where all is as on one CPU."""

from __future__ import annotations

import copy
import os
import sys
import tempfile

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={sys.argv[1]}"
)

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import torch_jax
from tests.distributed.mesh.on_mesh import (
    Net,
    adamw,
    expected_losses,
    purely,
    same,
    says,
    spec,
    train,
)

RULES = {"up.weight": ("model", "data"), "down.weight": ("data", "model"), "*": ()}


def values(mesh: object, rank: int) -> None:
    """Tensors are laid out, computed with, read and printed."""
    host = torch.arange(32.0).view(8, 4)
    x = torch_jax.shard(host, mesh, ("data", "model"))
    assert spec(x) == ("data", "model")
    assert x.sum().item() == 496 and x[5].tolist() == host[5].tolist()
    same(x.t() * 2 + torch.ones(8, device="jax"), host.t() * 2 + 1)
    x[2:4] = 7
    host[2:4] = 7
    same(x, host)
    torch.manual_seed(3)
    drawn = torch.randn_like(x)
    torch.manual_seed(3)
    same(drawn, torch.randn(8, 4, device="jax"))
    total = x.sum()
    if rank == 0:  # nobody waits for the others to print
        assert "over many processes" in repr(x) and f"{host.sum().item():g}" in repr(total)


def parts(mesh: object, rank: int, count: int) -> None:
    """Each process loads its own rows."""
    rows = torch.arange(16.0).view(8, 2)
    own = rows[rank * 8 // count : (rank + 1) * 8 // count]
    ((x, name),) = torch_jax.DeviceLoader([(own, "name")], mesh=mesh, spec=("data",))
    assert x.shape == (8, 2) and spec(x) == ("data",) and name == "name"
    same(x, rows)
    uneven = torch_jax.DeviceLoader([own[:1]], mesh=mesh, spec=(("data", "model"),))
    says(ValueError, "does not divide", lambda: list(uneven))


def training(mesh: object, runs: object, count: int) -> None:
    """Losses are those of the CPU."""
    net, expected = expected_losses(count)
    torch_jax.shard(net, mesh, RULES)
    losses = train(net, adamw(net), lambda x: torch_jax.shard(x, mesh, ("data",)), runs, count)
    same(torch.tensor(losses), torch.tensor(expected))
    assert spec(net.up.weight) == ("model", "data")


def on_meta(mesh: object) -> None:
    """Modules that nobody holds whole."""
    with torch.device("meta"):
        net = Net()
    torch.manual_seed(5)
    torch_jax.shard(net, mesh, RULES)
    weight = net.up.weight.detach().cpu()
    assert weight.std() > 0
    other = copy.deepcopy(net).state_dict()["up.weight"]
    same(other, weight)


def checkpoints(mesh: object, rank: int) -> None:
    """Each process writes its own parts, and reads what its devices are to have."""
    host = torch.arange(32.0).view(8, 4)
    x, y = (torch_jax.shard(host + at, mesh, ("data", "model")) for at in range(2))
    copies = torch_jax.shard(host * 3, mesh, ())
    folder = f"{tempfile.gettempdir()}/torch_jax-{os.environ['MASTER_PORT']}"
    says(
        dcp.CheckpointException,
        "init_process_group",
        lambda: dcp.save({"x": x}, checkpoint_id=folder),
    )
    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=2)
    dcp.save({"x": x, "y": y[2:7].t(), "copies": copies, "step": 3}, checkpoint_id=folder)
    found = {
        "x": torch_jax.shard(torch.zeros(8, 4), mesh, ("model", None)),
        "y": torch.zeros(4, 5),
        "copies": torch_jax.shard(torch.zeros(8, 4), mesh, ("data",)),
        "step": 0,
    }
    dcp.load(found, checkpoint_id=folder)
    same(found["x"], host)
    same(found["y"], (host + 1)[2:7].t())
    same(found["copies"], host * 3)
    assert spec(found["x"]) == ("model",) and found["step"] == 3
    dist.destroy_process_group()


rank, count = torch_jax.initialize()
assert torch_jax.initialize() == (rank, count) == (int(os.environ["RANK"]), 2)
mesh = torch_jax.mesh(data=-1, model=2)
says(ValueError, "takes no device of process 1", lambda: torch_jax.mesh(data=1))
values(mesh, rank)
parts(mesh, rank, count)
on_meta(mesh)
checkpoints(mesh, rank)
if "eager" in sys.argv:
    training(mesh, lambda step: step, 2)
training(mesh, torch_jax.jit, 5)
training(mesh, purely, 5)
print("well")
