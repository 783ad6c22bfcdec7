"""PyTorch/XLA's SPMD over eight devices."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_jax
from tests.distributed.mesh.on_mesh import Net, adamw, batches, same, says, spec, train
from torch_jax.compat.xla import fsdp, parallel_loader, spmd


def test_marks_of_pytorch_xla_lay_tensors_out():
    mesh = spmd.Mesh(range(8), (4, 2), ("data", "model"))
    assert mesh.shape() == {"data": 4, "model": 2} and mesh.get_axis_name_idx("model") == 1
    x = torch.arange(32.0).view(8, 4).to("jax")
    assert spmd.mark_sharding(x, mesh, (0, None)) is x and spec(x) == ("data",)
    same(x * 2, torch.arange(32.0).view(8, 4) * 2)
    assert spmd.is_sharded(x) and isinstance(x, spmd.XLAShardedTensor)
    spmd.clear_sharding(x)
    assert spec(x) == ()
    weight = nn.Parameter(torch.ones(4, 8, device="jax"))
    spmd.mark_sharding(weight, mesh, (None, ("data", "model")))
    assert spec(weight) == (None, ("data", "model"))
    (x @ weight).sum().backward()
    same(weight.grad, x.cpu().sum(0)[:, None].expand(4, 8))
    says(ValueError, "should be equal to the input rank", lambda: spmd.mark_sharding(x, mesh, (0,)))
    says(ValueError, "make no mesh", lambda: spmd.Mesh([0, 0], (2,)))


@pytest.mark.slow
def test_fsdp_of_pytorch_xla_trains_as_one_device():
    mesh = spmd.Mesh(range(8), (8, 1), ("fsdp", "model"))
    policy = functools.partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    torch.manual_seed(0)
    net, reference = Net("jax"), Net()
    reference.load_state_dict({name: value.cpu() for name, value in net.state_dict().items()})
    wrapped = fsdp.SpmdFullyShardedDataParallel(net, mesh=mesh, auto_wrap_policy=policy)
    assert spec(net.up.weight) == ("fsdp",) and type(net.up) is type(wrapped)
    optimizer = adamw(wrapped)

    @torch_jax.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(wrapped(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    sharding = spmd.ShardingSpec(mesh, ("fsdp", None))
    loader = parallel_loader.MpDeviceLoader(batches(4), "jax", input_sharding=sharding)
    found = [step(x, y).item() for x, y in loader]
    expected = train(reference, adamw(reference), lambda tensor: tensor)
    assert all(abs(a - b) < 2e-4 for a, b in zip(found, expected, strict=True)), (found, expected)
    assert spec(net.up.weight) == ("fsdp",)


def test_fsdp_takes_modules_of_the_cpu_with_their_buffers():
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    reference = nn.BatchNorm1d(8)
    wrapped = fsdp.SpmdFullyShardedDataParallel(copy.deepcopy(reference), mesh=mesh)
    x = torch.arange(64.0).view(8, 8)
    same(wrapped(x.to("jax")), reference(x))
    same(wrapped.running_mean, reference.running_mean)
