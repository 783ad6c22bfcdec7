"""``torch_jax.mesh``: the devices of this process, or of all that have joined, as a grid."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from torch_jax import target
from torch_jax.core import waking
from torch_jax.memory.sharding import Use


def mesh(**axes: int) -> Mesh:
    """Return the devices as a ``jax.sharding.Mesh``: an axis for each keyword, in their order.

    After :func:`torch_jax.initialize`, the mesh has the devices of all processes, those of one
    process side by side. It may take fewer devices than there are, but some of each process. One
    axis may be -1: it takes the remaining ones. The first axis joins several slices of TPUs.

    Raises:
      ValueError: no axis is given, there are not so many devices, or slices do not divide the
        first axis.

    >>> dict(mesh(data=1, model=1).shape)
    {'data': 1, 'model': 1}
    """
    waking.wake()
    devices = target.devices()
    lengths = _lengths(axes, len(devices))
    needed = math.prod(lengths)
    without = {one.process_index for one in devices} - {d.process_index for d in devices[:needed]}
    if without and target.chosen() is None:
        raise ValueError(
            f"mesh({_shown(axes)}) takes no device of process {min(without)}: each of "
            f"{jax.process_count()} processes must have some of {needed} devices"
        )
    kinds = (AxisType.Auto,) * len(axes)
    taken = devices[:needed]
    slices = _slices(taken)
    if slices > 1:
        made = Mesh(_over_slices(lengths, slices, taken), tuple(axes), axis_types=kinds)
    else:
        made = jax.make_mesh(lengths, tuple(axes), kinds, devices=taken)
    Use.meshes[made] = None
    return made


def _slices(devices: list[Any]) -> int:
    """Count the slices of TPUs that devices belong to; those of a single one may have no number."""
    return len({getattr(one, "slice_index", 0) for one in devices if one.platform == "tpu"})


def _over_slices(lengths: tuple[int, ...], slices: int, devices: list[Any]) -> np.ndarray:
    """Return the devices of several slices of TPUs as a grid, whose first axis joins the slices.

    ``jax.make_mesh`` takes the devices of one slice only.
    """
    first, *rest = lengths
    if first % slices:
        raise ValueError(
            f"the devices are of {slices} slices of TPUs, which the first axis of a mesh joins: "
            f"give it a length that is a multiple of {slices}, not {first}"
        )
    within, over = (first // slices, *rest), (slices, *(1 for _ in rest))
    return mesh_utils.create_hybrid_device_mesh(
        within, over, devices, allow_split_physical_axes=True
    )


def _lengths(axes: dict[str, int], count: int) -> tuple[int, ...]:
    """Return the length of each axis on ``count`` devices."""
    asked = _shown(axes)
    there_are = f"there are {count}"
    if count == 1:
        more = " (XLA_FLAGS=--xla_force_host_platform_device_count=8 makes eight of a CPU)"
        there_are = "there is 1" + more * target.on_cpu()
    if not axes:
        raise ValueError(f"a mesh needs an axis: torch_jax.mesh(data={count})")
    for name, length in axes.items():
        if type(length) is not int or not (length > 0 or length == -1):
            raise ValueError(f"axis {name!r} of a mesh is a positive int or -1, not {length!r}")
    given = math.prod(length for length in axes.values() if length > 0)
    free = list(axes.values()).count(-1)
    if free > 1:
        raise ValueError(f"mesh({asked}): one axis at most may be -1")
    if given > count or (free and count % given):
        what = f"a multiple of {given}" if free else str(given)
        raise ValueError(f"mesh({asked}) needs {what} devices, and {there_are}")
    return tuple(length if length > 0 else count // given for length in axes.values())


def _shown(axes: dict[str, int]) -> str:
    return ", ".join(f"{name}={length}" for name, length in axes.items())
