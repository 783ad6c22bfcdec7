"""Collectives of PyTorch/XLA: over all processes, with or without ``torch.distributed``."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree

from torch_jax.compat.xla import world

_OPERATIONS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "mul": dist.ReduceOp.PRODUCT,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = _OPERATIONS


def _check(groups: Any) -> None:
    """Raise for groups of some processes only."""
    everybody = list(range(world.size()))
    if groups and [sorted(group) for group in groups] != [everybody]:
        raise NotImplementedError(
            f"groups={groups}: PyTorch/XLA's collectives run over all {world.size()} processes "
            "here; for some of them use torch.distributed.new_group and its collectives"
        )


def _run(method: str, *arguments: Any) -> None:
    getattr(world.group(), method)(*arguments).wait()


def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Any = None,
    cctx: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Reduce over the processes: a list in place, of a single tensor a new one."""
    _check(groups)
    is_one = isinstance(inputs, torch.Tensor)
    tensors = [inputs.detach().clone()] if is_one else list(inputs)
    if world.size() > 1:
        options = dist.distributed_c10d.AllreduceCoalescedOptions()
        options.reduceOp = _OPERATIONS[reduce_type]
        _run("allreduce_coalesced", tensors, options)
    if scale != 1.0:
        with torch.no_grad():
            torch._foreach_mul_(tensors, scale)
    return tensors[0] if is_one else None


def all_gather(
    value: torch.Tensor,
    dim: int = 0,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Return the tensors of all processes, one after the other along a dimension."""
    _check(groups)
    parts = [value.detach()]
    if world.size() > 1:
        parts = [torch.empty_like(value) for _ in range(world.size())]
        _run("allgather", [parts], [value.detach().contiguous()])
    whole = torch.cat(parts, dim)
    return whole if output is None else output.copy_(whole)


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Reduce over the processes; each keeps its part along a dimension."""
    whole = all_reduce(reduce_type, input, scale, groups)
    part = whole.chunk(shard_count, scatter_dim)[world.rank()].contiguous()
    return part if output is None else output.copy_(part)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Give each process its part along one dimension; join the received ones along another."""
    _check(groups)
    parts = [part.contiguous() for part in value.detach().chunk(split_count, split_dimension)]
    if world.size() > 1:
        outputs = [torch.empty_like(part) for part in parts]
        _run("alltoall", outputs, parts)
        parts = outputs
    return torch.cat(parts, concat_dimension)


def collective_broadcast(
    tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Any = None, pin_layout: bool = True
) -> None:
    """Give all processes the tensors of one, in place."""
    _check(groups)
    options = dist.distributed_c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = root_ordinal, 0
    for tensor in tensors if world.size() > 1 else ():
        _run("broadcast", [tensor.detach()], options)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Give all processes the parameters and buffers of the first."""
    collective_broadcast([*model.parameters(), *model.buffers()])


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait until all processes have come here; return their payloads."""
    return _gathered(payload)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Return the result of a function for the objects of all processes."""
    return reduce_fn(_gathered(on_cpu(data)))


def on_cpu(data: Any) -> Any:
    """Return the data with copies on the CPU in place of tensors."""
    return _pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, data)


def _gathered(value: Any) -> list[Any]:
    """Return the objects of all processes, pickled through the store."""
    if world.size() == 1:
        return [value]
    group = world.group()
    store = group.get_group_store()
    turn = store.add(f"turns/{world.rank()}", 1)
    keys = [f"object/{turn}/{rank}" for rank in range(world.size())]
    store.set(keys[world.rank()], pickle.dumps(value))
    found = [pickle.loads(store.get(key)) for key in keys]
    group.barrier().wait()
    store.delete_key(keys[world.rank()])
    return found
