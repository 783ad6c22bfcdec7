"""Memories that lie in parts on the devices of a mesh.

JAX moves an array that it has placed by itself to any other. So a program of one device becomes one
of a mesh as soon as one of its operands is sharded, and XLA (GSPMD) shards results. The rest is
here: a storage that is written keeps its sharding (:func:`kept`, :func:`on_mesh`), new tensors
"like" a sharded one are sharded alike (:func:`follow`), and arrays that a user has bound to one
device are copied to the mesh where they meet sharded ones (:func:`on_one_mesh`).

None of this costs anything before the first tensor is sharded (:attr:`Use.begun`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from torch_jax import target
from torch_jax._private import jax_core
from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.compiler import options
from torch_jax.core import absent
from torch_jax.core.node import Node
from torch_jax.core.x64 import x64
from torch_jax.memory import processes


class Use:
    """The record of arrays sharded in this process."""

    begun = False  # whether any array is sharded, or lies on another device than the first
    meshes: ClassVar[dict[Mesh, None]] = {}  # that were made, each once

    @classmethod
    def begin(cls, mesh: Mesh) -> None:
        cls.meshes[mesh] = None
        cls.begun = True


def meet(array: jax.Array) -> None:
    """Note an array of the user's as a memory: it may lie on a mesh, or another device."""
    if not is_at_home(array):
        Use.begun, found = True, array.sharding
        if isinstance(found, NamedSharding) and isinstance(found.mesh, Mesh):
            Use.begin(found.mesh)


def is_at_home(array: jax.Array) -> bool:
    """Return whether all of an array lies on the first device."""
    return array.devices() == {jax.local_devices()[0]}


# By the node of a storage in a recording: the sharding that the memory is to have.
_wanted: weakref.WeakKeyDictionary[Node, Any] = weakref.WeakKeyDictionary()


def sharding_of(array: Any) -> Any:
    """Return the sharding of an array or node on a mesh; None for others and for tracers."""
    if type(array) is Node:
        return _wanted.get(array) if array.recording is not None else sharding_of(array.array)
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return None
    sharding = array.sharding
    return None if isinstance(sharding, SingleDeviceSharding) else sharding


def spec_of(spec: Any) -> PartitionSpec:
    """Return JAX's specification for a tuple of axis names, None, and tuples of names.

    >>> spec_of(("data", None)) == PartitionSpec("data", None)
    True
    """
    if isinstance(spec, PartitionSpec):
        return spec
    if isinstance(spec, tuple | list):
        return PartitionSpec(*(tuple(one) if isinstance(one, list) else one for one in spec))
    raise TypeError(
        "a sharding is a tuple with an axis name of the mesh, a tuple of names or None for each "
        f"dimension, or a PartitionSpec: {spec!r}"
    )


def named(mesh: Mesh, spec: Any, shape: Sequence[int]) -> NamedSharding:
    """Return the sharding of an array over a mesh, which must have the axes, and divide it."""
    found = spec_of(spec)
    if fault := _fault(mesh, tuple(found), tuple(shape)):
        raise ValueError(f"{tuple(found)} cannot shard a tensor of shape {list(shape)}: {fault}")
    return NamedSharding(mesh, found)


def _fault(mesh: Mesh, spec: tuple[Any, ...], shape: tuple[int, ...]) -> str | None:
    if len(spec) > len(shape):
        return f"it names {len(spec)} dimensions, and the tensor has {len(shape)}"
    met: set[str] = set()
    for at, (part, length) in enumerate(zip(spec, shape, strict=False)):
        names = axes_of(part)
        for name in names:
            if name not in mesh.shape:
                return f"the mesh has no axis {name!r}; it is {describe(mesh)}"
            if name in met:
                return f"axis {name!r} shards two dimensions"
            met.add(name)
        parts = math.prod(mesh.shape[name] for name in names)
        if length % parts:
            return (
                f"dimension {at} has {length} elements, which {' x '.join(map(repr, names))} "
                f"({parts} parts) does not divide; give None there, or pad the tensor"
            )
    return None


def axes_of(part: Any) -> tuple[Any, ...]:
    """Return the axis names that shard one dimension."""
    return () if part is None else part if isinstance(part, tuple) else (part,)


def fitting(mesh: Mesh, spec: Any, shape: Sequence[int]) -> NamedSharding:
    """Return :func:`named` without names of dimensions that are missing, or do not divide."""
    parts = tuple(spec_of(spec))[: len(shape)]
    kept = [
        part if not length % math.prod(mesh.shape.get(name, 1) for name in axes_of(part)) else None
        for part, length in zip(parts, shape, strict=False)
    ]
    return named(mesh, tuple(kept), shape)


def permuted(sharding: NamedSharding, order: Sequence[int]) -> NamedSharding:
    """Return the sharding of an array whose dimensions are put in another order."""
    parts = [*sharding.spec, *(None for _ in range(len(order) - len(sharding.spec)))]
    return NamedSharding(sharding.mesh, PartitionSpec(*(parts[at] for at in order)))


def describe(mesh: Mesh) -> str:
    """Return a mesh in words.

    >>> import numpy as np
    >>> describe(Mesh(np.array(jax.devices()[:1]), ("data",)))
    'mesh(data=1) of device 0'
    """
    axes = ", ".join(f"{name}={length}" for name, length in mesh.shape.items())
    ids = [device.id for device in mesh.devices.flat]
    plain = len(ids) > 1 and ids == list(range(ids[0], ids[0] + len(ids)))
    some = f"devices {ids[0]} to {ids[-1]}" if plain else f"device {', '.join(map(str, ids))}"
    return f"mesh({axes}) of {some}"


def placed(array: Any, sharding: Any) -> jax.Array:
    """Return an array, of host or devices, with this sharding; each device gets its part only."""
    if absent.is_chosen():
        return absent.Absent(array.shape, array.dtype, sharding)
    if processes.is_wide(sharding):
        return processes.laid(array, sharding)
    with x64(), jax_core.outside_of_traces():
        return jax.device_put(array, sharding)


def kept(before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Return new memories of storages, each with the sharding of the one that it replaces."""
    new = list(after)
    for at, old in enumerate(before):
        sharding = sharding_of(old)
        if sharding is not None and old is not new[at] and old.shape == new[at].shape:
            new[at] = as_wanted(new[at], sharding)
    return new


def as_wanted(new: Any, sharding: Any) -> Any:
    """Return a memory with this sharding: arrays move, nodes are noted, tracers stay."""
    if type(new) is Node:
        if new.recording is not None and _wanted.setdefault(new, sharding) == sharding:
            return new
        return as_wanted(new.get(), sharding)  # another storage holds the node, too
    if not isinstance(new, jax.Array) or isinstance(new, jax.core.Tracer):
        return new
    same = new.sharding.is_equivalent_to(sharding, new.ndim)
    return new if same else placed(new, sharding)


def wanted_by(node: Any) -> Any:
    """Return the sharding that a node is to have, by the storage that it was written to, if any."""
    sharding = _wanted.get(node) if Use.begun else None
    if sharding is not None:
        with contextlib.suppress(ValueError):  # of a shape that was resized, and does not fit
            sharding.shard_shape(tuple(node.shape))
            return sharding
    return None


def settled(node: Node, array: Any) -> Any:
    """Return a node's array, with the sharding of the storage that it was written to."""
    sharding = _wanted.pop(node, None)
    return array if sharding is None else as_wanted(array, sharding)


def on_mesh(run: Callable[..., Any], entry: Any, memories: Sequence[Any]) -> Callable[..., Any]:
    """Return a function that runs an entry over a mesh: no device holds all that is written."""
    if not entry.concrete:
        shardings = tuple(map(sharding_of, (memories[slot] for slot in entry.slots)))
        if any(shardings):
            run = _keeping(entry.run.plain, entry, shardings)

    def mixing(*memories: Any) -> Any:
        try:
            return run(*memories)
        except Exception:
            together = on_one_mesh(memories)  # those that a user has bound to one device are copied
            if together is None:
                raise
            return run(*together)

    return mixing


@functools.lru_cache(ENTRIES_REMEMBERED)
def _keeping(plain: Callable[..., Any], entry: Any, shardings: tuple[Any, ...]) -> Any:
    def run(*memories: Any) -> list[Any]:
        arrays = list(plain(*memories))
        first = len(arrays) - len(shardings) - bool(entry.check)
        for at, sharding in enumerate(shardings, first):
            if sharding is not None:
                arrays[at] = jax.lax.with_sharding_constraint(arrays[at], sharding)
        return arrays

    return jax.jit(run, compiler_options=options.operator())


def on_targets(given: Sequence[Any]) -> list[Any]:
    """Return where arrays, or forms, are to lie on the target's chips; None: JAX decides."""
    is_sharded = Use.begun and any(sharding_of(one) is not None for one in given)
    if is_sharded or target.chosen() is not None:
        return [on_target(sharding_of(one)) for one in given]
    return [one.sharding if is_bound(one) else None for one in given]


def on_target(sharding: Any) -> Any:
    """Return a sharding with the devices of its mesh replaced by as many chips of the target."""
    if target.chosen() is None or not isinstance(sharding, NamedSharding):
        return sharding
    chips = target.devices()
    if sharding.mesh.devices.flat[0] in chips:
        return sharding
    if sharding.mesh.size > len(chips):
        raise ValueError(f"{sharding.mesh} is larger than the target's {len(chips)} chips")
    chosen = np.array(chips[: sharding.mesh.size]).reshape(sharding.mesh.devices.shape)
    return NamedSharding(Mesh(chosen, sharding.mesh.axis_names), sharding.spec)


def on_one_mesh(memories: Sequence[Any]) -> list[Any] | None:
    """Copy the memories that are bound to one device to the mesh of the others; None: no need."""
    shardings = [s for s in map(sharding_of, memories) if isinstance(s, NamedSharding)]
    bound = [at for at, memory in enumerate(memories) if is_bound(memory)]
    meshes: dict[Any, tuple] = {s.mesh: tuple(s.mesh.devices.flat) for s in shardings}
    if len(set(meshes.values())) > 1:  # different devices, or the same in another order
        named_ = " and ".join(map(describe, meshes))
        raise RuntimeError(
            f"tensors of one operator are sharded over different meshes: {named_}. Move one of "
            "them: x = torch_jax.shard(x, mesh, spec)"
        )
    if not (shardings and bound):
        return None
    found = list(memories)
    for at in bound:  # a copy on each device of the mesh
        found[at] = placed(found[at], NamedSharding(shardings[0].mesh, PartitionSpec()))
    return found


def is_bound(memory: Any) -> bool:
    """Return whether a user has bound an array to one device, so that JAX does not move it."""
    if isinstance(memory, jax.core.Tracer) or sharding_of(memory) is not None:
        return False
    return getattr(memory, "committed", False) is True


def follow(made: Any, model: Any) -> None:
    """Shard the memory of a new tensor as that of another, where the two have one shape."""
    source: Any = model.untyped_storage()
    storage = made.untyped_storage()
    of_model, new = getattr(source, "array", None), getattr(storage, "array", None)
    if of_model is None or new is None or of_model.shape != new.shape:
        return
    if isinstance(of_model, jax.core.Tracer):  # then that of the array before the present trace
        sharding = source.__dict__.get("wanted")  # None where XLA decides
    else:
        sharding = sharding_of(of_model)
    if sharding is not None:
        sharding = states_of(source) or sharding
        storage.array = as_wanted(new, sharding)
        if isinstance(new, jax.core.Tracer):
            storage.wanted = sharding


def states_of(storage: Any) -> Any:
    """Return the sharding that :mod:`torch_jax.distributed.zero` has set for tensors like this."""
    return storage.__dict__.get("states")
