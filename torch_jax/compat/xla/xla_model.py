"""``torch_xla.core.xla_model``: the device, the number of this process, collectives, steps.

Collectives run over all processes, with or without ``torch.distributed``.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
import torch.distributed as dist
from torch.utils import _pytree

from torch_jax._private import pytorch
from torch_jax.compat.xla import world
from torch_jax.device import device_module
from torch_jax.dispatch.call_jax import jax_function
from torch_jax.recorded import lazy

_NAMES = {"sum": "SUM", "mul": "PRODUCT", "and": "BAND", "or": "BOR", "min": "MIN", "max": "MAX"}
REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = _NAMES
_step = threading.local()  # ``closures``: functions that a thread has put off to its step's end


# --- the device -----------------------------------------------------------------------------------


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return the device of this process, after the processes have met."""
    world.begin()
    return torch.device(pytorch.DEVICE_TYPE, 0)


def xla_device_hw(device: Any) -> str:
    """Return the kind of the device: ``"CPU"``, ``"CUDA"``, ``"TPU"``."""
    world.begin()
    kind = device_module.get_device_properties(device).platform
    return "CUDA" if kind == "gpu" else kind.upper()


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on the device."""
    return tensor.device.type == pytorch.DEVICE_TYPE


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """Return the kind of the devices of this process, such as ``["CPU:0"]``."""
    return [f"{xla_device_hw(xla_device())}:{world.local_rank()}"]


def get_xla_supported_devices(
    devkind: str | None = None, max_devices: int | None = None
) -> list[str]:
    """Return the devices of this process: one."""
    return [str(xla_device())]


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """Return the data with tensors on the device, laid over a mesh by a given ``ShardingSpec``."""
    moved = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), datas)
    for tensor in _pytree.tree_leaves(moved) if input_sharding is not None else ():
        if isinstance(tensor, torch.Tensor) and input_sharding.can_apply(tensor):
            input_sharding.apply(tensor)
    return moved


# --- randomness and memory ------------------------------------------------------------------------


def set_rng_state(seed: int, device: Any = None) -> None:
    """Seed the device's random numbers."""
    device_module.manual_seed(int(seed))


def get_rng_state(device: Any = None) -> int:
    """Return the seed that was set."""
    return device_module.initial_seed()


def get_memory_info(device: Any = None) -> dict[str, int]:
    """Return the device's bytes, total, used and peak; 0 where JAX does not report them."""
    _, limit = device_module.mem_get_info()
    used, peak = device_module.memory_allocated(), device_module.max_memory_allocated()
    return {"bytes_used": used, "bytes_limit": limit, "peak_bytes_used": peak}


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Make XLA compute these before later operators, in place."""
    for tensor, after in zip(tensors, _barrier([t.detach() for t in tensors]), strict=True):
        tensor.data = after


_barrier = jax_function(jax.lax.optimization_barrier)


# --- the number of this process -------------------------------------------------------------------


get_ordinal, get_local_ordinal, xrt_world_size = world.rank, world.local_rank, world.size


def is_master_ordinal(local: bool = True) -> bool:
    """Return whether this process is the first of its host, or of all."""
    return (world.local_rank() if local else world.rank()) == 0


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Print in the first process only."""
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


# --- collectives ----------------------------------------------------------------------------------


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
        options.reduceOp = getattr(dist.ReduceOp, _NAMES[reduce_type])
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


# --- steps ----------------------------------------------------------------------------------------


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """End a step: run recorded operators, then the functions of :func:`add_step_closure`."""
    lazy.sync(wait)
    closures, _step.closures = getattr(_step, "closures", ()), ()
    for closure, args in closures:
        closure(*args)


def add_step_closure(
    closure: Callable[..., Any], args: tuple = (), run_async: bool = False
) -> None:
    """Call a function at the end of the step, when its tensors have values."""
    _step.closures = *getattr(_step, "closures", ()), (closure, args)


def wait_device_ops(devices: Sequence[Any] = ()) -> None:
    """Wait until the device has finished all work."""
    lazy.sync(wait=True)


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Compute recorded tensors."""
    lazy.sync()


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Average gradients over the processes, and let the optimizer step."""
    reduce_gradients(optimizer, groups)
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return result


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Any = None, pin_layout: bool = True
) -> None:
    """Average the gradients of an optimizer's parameters over the processes."""
    weights = (w for group in optimizer.param_groups for w in group["params"])
    if gradients := [weight.grad for weight in weights if weight.grad is not None]:
        all_reduce("sum", gradients, 1.0 / world.size(), groups)


# --- files and rates ------------------------------------------------------------------------------


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """Save as tensors of the CPU, in the first process; all wait for the file."""
    mark_step()
    if not master_only or is_master_ordinal(local=not global_master):
        torch.save(on_cpu(data), file_or_path)
    rendezvous("torch_xla.core.xla_model.save")


class RateTracker:
    """Counts samples, and their rate per second, recent and overall."""

    def __init__(self, smooth_factor: float = 0.4):
        self._smooth, self._rate = smooth_factor, 0.0
        self._start = self._last = time.time()
        self._count = self._counted = 0.0

    def add(self, count: float) -> None:
        """Count more samples."""
        self._count += count

    def rate(self) -> float:
        """Return samples a second since the last call, smoothed."""
        now, new = time.time(), self._count - self._counted
        current = new / max(now - self._last, 1e-9)
        smooth = self._smooth if self._rate else 0.0
        self._rate = smooth * self._rate + (1 - smooth) * current
        self._last, self._counted = now, self._count
        return self._rate

    def global_rate(self) -> float:
        """Return samples a second since the beginning."""
        return self._count / max(time.time() - self._start, 1e-9)
