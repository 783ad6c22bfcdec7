"""``torch.distributed.checkpoint`` between two processes and one, and between the two devices."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.distributed.checks.sharding import _mesh

warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)")
warnings.filterwarnings("ignore", "Detected an existing checkpoint")
_DEVICES = "jax", "cpu"


def _folder() -> str:
    """A new folder, the same for both processes."""
    made = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(made, 0)
    return made[0]


def _done(where: str, *results: Any) -> Any:
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(where)
    return results


def _whole(tensors: dict[str, Any]) -> list[torch.Tensor]:
    return [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors.values()]


def _spread(device: str, seed: int) -> dict[str, Any]:
    """Tensors of both processes, split in several ways, some unevenly, and a plain one."""
    values = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(8, 6, generator=values).to(device) for _ in range(2))
    mesh = _mesh(device)
    return {
        "rows": distribute_tensor(a, mesh, [Shard(0)]),
        "columns": distribute_tensor(b, mesh, [Shard(1)]),
        "both": distribute_tensor(a * b, mesh, [Replicate()]),
        "uneven": distribute_tensor(a[:5], mesh, [Shard(0)]),
        "half": distribute_tensor(b.bfloat16(), mesh, [Shard(0)]),
        "plain": a + b,
    }


def dtensors_are_saved_and_loaded(device: str) -> Any:
    where, results = _folder(), []
    for source in (device, "cpu"):  # by this device, and by the CPU for this one
        dcp.save(_spread(source, 1), checkpoint_id=where)
        found = _spread(device, 2)
        found["rows"] = found["rows"].redistribute(placements=[Shard(1)])
        dcp.load(found, checkpoint_id=where)
        results = _whole(found)
    dcp.save(_spread(device, 3), checkpoint_id=where)
    found = _spread("cpu", 4)
    dcp.load(found, checkpoint_id=where)
    return _done(where, results, _whole(found))


def one_process_loads_what_two_have_saved_and_the_other_way(device: str) -> Any:
    where, results = _folder(), []
    dcp.save(_spread(device, 1), checkpoint_id=f"{where}/two")
    alone = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in _spread("cpu", 1).items()}
    for to in _DEVICES:
        alone = {name: tensor.to(to) for name, tensor in alone.items()}
        dcp.load(alone, checkpoint_id=f"{where}/two", no_dist=True)
        results += [tensor.cpu() for tensor in alone.values()]
    if dist.get_rank() == 0:
        doubled = {name: (tensor * 2).to(device) for name, tensor in alone.items()}
        dcp.save(doubled, checkpoint_id=f"{where}/one", no_dist=True)
    dist.barrier()
    found = _spread(device, 3)
    dcp.load(found, checkpoint_id=f"{where}/one")
    return _done(where, results, _whole(found))


def _model(device: str, seed: int) -> tuple[nn.Module, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)).to(device)
    mesh = _mesh(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def _train(model: nn.Module, optimizer: Any, device: str, first: int, count: int = 2) -> Any:
    losses = []
    for step in range(first, first + count):
        seed = torch.Generator().manual_seed(10 * step + dist.get_rank())
        loss = model(torch.randn(4, 6, generator=seed).to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def training_goes_on_from_a_checkpoint(device: str) -> Any:
    where, losses = _folder(), []
    for source, target in ((device, device), ("cpu", device), (device, "cpu")):
        model, optimizer = _model(source, 0)
        _train(model, optimizer, source, 0)
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optim": state}, checkpoint_id=where)
        other, another = _model(target, 1)
        weights, state = get_state_dict(other, another)
        found = {"model": weights, "optim": state}
        dcp.load(found, checkpoint_id=where)
        set_state_dict(other, another, model_state_dict=weights, optim_state_dict=found["optim"])
        losses += _train(other, another, target, 2)
    return _done(where, losses)


def full_state_dicts_come_from_one_process(device: str) -> Any:
    model, _ = _model(device, 0)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=options)
    tensors = list(whole.values())
    other, _ = _model(device, 1)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, whole, options=options)
    return _whole(other.state_dict()), tensors


def _saved_meanwhile(device: str, where: str, **options: Any) -> list[torch.Tensor]:
    """What an asynchronous save has written, of a model that is trained meanwhile."""
    model, optimizer = _model(device, 0)
    weights, state = get_state_dict(model, optimizer)
    given = {"model": weights, "optim": state}
    if "storage_writer" not in options:
        options["checkpoint_id"] = where
    future: Any = dcp.async_save(given, **options)
    if hasattr(future, "staging_completion"):
        future.staging_completion.result()
        future = future.upload_completion
    _train(model, optimizer, device, 0)
    future.result()
    other, _ = _model(device, 1)
    found = {"model": get_model_state_dict(other)}
    dcp.load(found, checkpoint_id=where)
    return _whole(found["model"])


def training_goes_on_while_it_is_saved(device: str) -> Any:
    where, results = _folder(), _saved_meanwhile(device, folder := _folder())
    for options in ((False,) * 4, (False, True, True, device != "cpu")):
        stager = DefaultStager(StagingOptions(*options))
        results += _saved_meanwhile(device, where, async_stager=stager)
        stager.close()
    own = dist.new_group([0, 1], backend="gloo")  # which training does not use meanwhile
    results += _saved_meanwhile(device, where, process_group=own)
    for cached in (False, device != "cpu"):
        writer = dcp.FileSystemWriter(where, cache_staged_state_dict=cached)
        results += _saved_meanwhile(device, where, storage_writer=writer)
    return _done(folder), _done(where, results)


def another_process_saves(device: str) -> Any:
    if device == "cpu":  # one such process is enough: it takes seconds to start
        return []
    where, kind = _folder(), AsyncCheckpointerType.PROCESS
    for _ in range(2):
        stager = DefaultStager(StagingOptions(False, True, False, False))
        found = _saved_meanwhile(device, where, async_stager=stager, async_checkpointer_type=kind)
        stager.close()
        for tensor, expected in zip(found, _whole(_model("cpu", 0)[0].state_dict()), strict=True):
            torch.testing.assert_close(tensor.cpu(), expected)
    return _done(where, [])[0]
