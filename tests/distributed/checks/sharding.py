"""DTensor, tensor parallelism and FSDP2 over a mesh of processes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def _mesh(device: str) -> DeviceMesh:
    if device == "jax":
        return init_device_mesh("jax", (2,))
    return DeviceMesh.from_group(dist.new_group([0, 1], backend="gloo"), "cpu")


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.relu(self.up(x)))


def _trained(model: nn.Module, batch: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    """The losses of two steps, and the weights that come of them."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(2):
        loss = model(batch(step)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(p.full_tensor() for p in model.parameters())]  # type: ignore[attr-defined]


def _numbers(seed: int) -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))


def dtensors_are_redistributed(device: str) -> Any:
    mesh = _mesh(device)
    left = distribute_tensor(torch.arange(48.0).view(8, 6).to(device), mesh, [Shard(0)])
    right = distribute_tensor(torch.arange(24.0).view(6, 4).to(device), mesh, [Replicate()])
    product = left @ right
    return (
        product.redistribute(mesh, [Replicate()]).to_local(),
        product.redistribute(mesh, [Shard(1)]).to_local(),
        product.sum().full_tensor(),
    )


def dtensors_are_saved(device: str) -> Any:
    saved, file = (
        distribute_tensor(torch.arange(6.0).to(device), _mesh(device), [Shard(0)]),
        io.BytesIO(),
    )
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    return loaded.to_local(), str(loaded.placements), loaded.data_ptr()


def modules_of_dtensors_leave_meta(device: str) -> Any:
    mesh, layer = _mesh(device), nn.Linear(4, 6, device="meta")
    parallelize_module(layer, mesh, ColwiseParallel())
    weight = layer.weight
    layer.to_empty(device=device)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(1.0)
    result = layer(torch.ones(3, 4).to(device))
    return result, layer.weight is weight, layer.weight.device.type == device


def tensor_parallel_layers_train(device: str) -> Any:
    torch.manual_seed(0)
    model = _Layer().to(device)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, _mesh(device), plan)
    return _trained(model, lambda step: _numbers(step).to(device))


def fully_sharded_layers_train(device: str) -> Any:
    return _fully_sharded(device)


def fully_sharded_layers_train_in_bfloat16(device: str) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return [value.float().round(decimals=2) for value in _fully_sharded(device, mp_policy=policy)]


def _fully_sharded(device: str, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    mesh, model = _mesh(device), nn.Sequential(_Layer(), _Layer()).to(device)
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh, **options)
    return _trained(model, lambda step: _numbers(10 * step + dist.get_rank()).to(device))


def attention_is_split_by_batch_and_by_heads(device: str) -> Any:
    """On the CPU by one process."""
    mesh, found = _mesh(device), []
    for placement in (Replicate(), Shard(0), Shard(1), Shard(2)):
        for shape in (None, (2, 4, 5, 5), (1, 1, 5, 5)):
            generator = torch.Generator().manual_seed(1)
            heads = [torch.randn(2, 4, 5, 8, generator=generator).to(device) for _ in range(3)]
            mask = None if shape is None else torch.randn(shape, generator=generator).to(device)
            if device == "jax":
                heads = [distribute_tensor(x, mesh, [placement]) for x in heads]
                if mask is not None:
                    mask = distribute_tensor(mask, mesh, [Replicate()])
            query, key, value = (x.detach().requires_grad_() for x in heads)
            out = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
            out.square().sum().backward()
            results = [out.detach(), query.grad, key.grad, value.grad]
            found += [x.full_tensor() if device == "jax" else x for x in results]  # type: ignore[attr-defined]
    return found
