"""``torch_jax.shard`` and ``torch_jax.with_sharding_constraint``: tensors over a mesh of devices.

A sharded tensor is a plain tensor of device ``jax`` whose memory lies in parts on many devices; its
operators follow from that (:mod:`torch_jax.memory.sharding`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torch_jax.core import waking
from torch_jax.core.active import ACTIVE
from torch_jax.core.x64 import x64
from torch_jax.dispatch.call_jax import jax_function
from torch_jax.distributed import deferred, rules, zero
from torch_jax.loops.master_weights import kept_for, parameters_of
from torch_jax.memory import geometry, sharding, storage, transfer
from torch_jax.memory.sharding import Use

T = TypeVar("T", torch.Tensor, torch.nn.Module)


def shard(
    x: T,
    mesh: Mesh,
    spec: Any,
    optimizer: torch.optim.Optimizer | None = None,
    init: Callable[[torch.nn.Module], Any] | None = None,
    zero: str | None = None,
) -> T:
    """Lay a tensor, or the parameters and buffers of a module, over the devices of a mesh.

    A module, and a parameter, is sharded in place: the tensors stay the same objects, tied ones
    stay tied, and optimizers that were made before remain valid; state that an optimizer makes
    later is sharded like its parameter. For any other tensor a sharded one is returned, through
    which gradients flow. Tensors on the CPU are copied to the devices, to each its part; parameters
    on ``meta`` are made there, and their module's ``reset_parameters`` is called.

    Args:
      x: a tensor or a module.
      mesh: of :func:`torch_jax.mesh`.
      spec: for each dimension an axis of the mesh, several as a tuple, or None; dimensions that are
        not named, and all those of ``()``, are not split. For a module also a dict of such by the
        names of parameters and buffers, with ``*`` and ``?``; the first that fits counts.
      optimizer: its state, if it has been made, is sharded like the module's parameters; and again
        whenever it is loaded.
      init: called with a module that was on ``meta``, in place of ``reset_parameters``.
      zero: of a module: an axis over which the state of optimizers, and all other tensors made like
        a parameter, are split, too (ZeRO). The first free dimension that the axis divides is split;
        without one, state lies as its parameter.

    Raises:
      TypeError: ``x`` or ``spec`` is of another type.
      ValueError: a name fits no rule, or a tensor cannot be sharded so; no tensor was changed.

    >>> import torch_jax
    >>> x = torch_jax.shard(torch.ones(4, 2), torch_jax.mesh(data=1), ("data", None))
    >>> x.device, x.sum().item()
    (device(type='jax', index=0), 8.0)
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"a mesh of torch_jax.mesh is asked for, not {type(mesh).__name__}")
    waking.wake()
    if isinstance(x, torch.nn.Module):
        _shard_module(x, mesh, spec, optimizer, init, zero)
        return x
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"a tensor or an nn.Module is sharded, not {type(x).__name__}")
    wanted = sharding.named(mesh, spec, x.shape)
    Use.begin(mesh)
    if isinstance(x, torch.nn.Parameter):
        _refuse_traced()
        x.data = _moved(x, wanted)
        return x
    return _constrain(x, wanted) if storage.is_jax(x) else transfer.to_device(x.detach(), wanted)


def with_sharding_constraint(x: torch.Tensor, spec: Any, mesh: Mesh | None = None) -> torch.Tensor:
    """Return ``x`` with its value, and its gradient, laid over a mesh by ``spec``.

    Under ``torch_jax.jit``, in lazy mode and by ``torch.compile`` XLA lays out a value between two
    operators so. ``mesh`` may be left out if only one was made.

    Raises:
      ValueError: ``x`` cannot be sharded so, or several meshes were made.

    >>> import torch_jax
    >>> mesh = torch_jax.mesh(data=1)
    >>> torch_jax.with_sharding_constraint(torch.ones(2, device="jax"), ("data",), mesh).cpu()
    tensor([1., 1.])
    """
    if mesh is None:
        if len(Use.meshes) != 1:
            shown = " and ".join(map(sharding.describe, Use.meshes)) or "none"
            raise ValueError(f"say which mesh is meant with mesh=; those that were made: {shown}")
        mesh = next(iter(Use.meshes))
    wanted = sharding.named(mesh, spec, x.shape)
    Use.begin(mesh)
    return _constrain(x, wanted)


_constrain = jax_function(jax.lax.with_sharding_constraint)


def _shard_module(
    module: torch.nn.Module, mesh: Mesh, spec: Any, optimizer: Any, init: Any, axis: str | None
) -> None:
    """Find the sharding of every tensor, then move them all."""
    _refuse_traced()
    if axis is not None and axis not in mesh.shape:
        raise ValueError(
            f"zero={axis!r}: the mesh has no such axis; it is {sharding.describe(mesh)}"
        )
    wanted = rules.shardings(module, mesh, spec)
    tensors = {id(tensor): tensor for _, tensor in rules.tensors_of(module)}
    for key, tensor in list(tensors.items()):
        if tensor.grad is not None:
            tensors[id(tensor.grad)], wanted[id(tensor.grad)] = tensor.grad, wanted[key]
    states = [state for tensor in tensors.values() for state in _states_of(tensor, optimizer)]
    for tensor in (*tensors.values(), *states):
        if storage.is_jax(tensor):
            _memory_shape(tensor)  # raises before any tensor is moved
    parts = deferred.parts_on_meta(module, init)
    Use.begin(mesh)
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # before and after
    whole = NamedSharding(mesh, PartitionSpec())  # of others, as a torchmetrics metric's states

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            moved[id(tensor)] = tensor, _moved(tensor, wanted.get(id(tensor), whole))
        return moved[id(tensor)][1]  # for a tied tensor the same again

    module._apply(move)
    for parameter in module.parameters():  # tensors made like it are split over ``axis``, too
        held: Any = parameter.untyped_storage()
        held.states = zero.split(sharding.sharding_of(held.array), held.array.shape, axis)
    if optimizer is not None:
        _move_states(optimizer)
        zero.keep_moved(optimizer, _move_states)
    if parts and init is not None:
        init(module)
    else:  # operators that write tensors compute sharded
        for _, part in parts:
            deferred.reset_of(part)()


def _move_states(optimizer: torch.optim.Optimizer) -> None:
    """Lay the state of an optimizer like other tensors made like its parameters."""
    for parameter in filter(storage.is_jax, parameters_of(optimizer)):
        if (of_memory := sharding.states_of(parameter.untyped_storage())) is not None:
            _, order = _memory_shape(parameter)
            wanted = sharding.permuted(of_memory, [order.index(at) for at in sorted(order)])
            for state in _states_of(parameter, optimizer):
                moved = _moved(state, wanted)
                if moved is not state:  # it was on the CPU
                    state.data = moved


def _states_of(parameter: torch.Tensor, optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors like a parameter that an optimizer keeps for it."""
    kept = kept_for(optimizer, parameter).values()
    tensors = (value for value in kept if isinstance(value, torch.Tensor))
    return [one for one in tensors if one.shape == parameter.shape and one.dim()]


def _moved(tensor: torch.Tensor, wanted: NamedSharding) -> torch.Tensor:
    """Return a tensor with a sharding: the same object if it is on the device."""
    if tensor.is_meta:
        return deferred.zeros(tensor, wanted)
    if not storage.is_jax(tensor):
        return transfer.to_device(tensor.detach().cpu(), wanted)
    shape, order = _memory_shape(tensor)
    memory = storage.held_by(tensor)
    if memory.shape != shape:
        with x64():
            memory = storage.memory_of(tensor).reshape(shape)
    held: Any = tensor.untyped_storage()
    held.array = sharding.as_wanted(memory, sharding.permuted(wanted, order))
    return tensor


def _refuse_traced() -> None:
    if ACTIVE.tracer is not None:
        raise RuntimeError(
            "torch_jax.shard moves a module's parameters, which a compiled step cannot: call it "
            "before, or use torch_jax.with_sharding_constraint"
        )


def _memory_shape(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape that the memory behind a tensor has, or can be given, and its order."""
    memory = storage.held_by(tensor)
    order = geometry.memory_order(tuple(tensor.shape), tensor.stride())
    if (
        order is None
        or memory.size != tensor.numel()
        or tensor.dtype.itemsize != memory.dtype.itemsize
    ):
        raise ValueError(
            f"a tensor of shape {list(tensor.shape)} is a view of a memory of shape "
            f"{list(memory.shape)}: shard the tensor that it views, or a copy of it (x.clone())"
        )
    return tuple(tensor.shape[at] for at in order), order
