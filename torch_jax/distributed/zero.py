"""ZeRO: the state of an optimizer in parts over the devices that hold whole parameters.

Tensors that are made like a parameter get the sharding that its storage names
(:func:`torch_jax.memory.sharding.follow`). XLA gives each device its part of the gradient, updates
that part, and gathers the parameter (https://arxiv.org/abs/1910.02054).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jax.sharding import NamedSharding, PartitionSpec

from torch_jax.core.active import ACTIVE
from torch_jax.memory import sharding

_known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def split(wanted: NamedSharding, shape: Sequence[int], axis: str | None) -> NamedSharding:
    """Return a parameter's sharding for its states: over ``axis``, too.

    The first dimension is split that nothing else splits and that the axis divides, then one of the
    others. Without any, states lie as their parameter.

    >>> import torch_jax
    >>> whole = sharding.named(torch_jax.mesh(data=1), (), (3, 4))
    >>> split(whole, (3, 4), "data").spec == PartitionSpec("data", None)
    True
    """
    parts = [*wanted.spec, *(None for _ in range(len(shape) - len(wanted.spec)))]
    if axis is None or any(axis in sharding.axes_of(part) for part in parts):
        return wanted
    lengths = wanted.mesh.shape
    by_freedom = sorted(range(len(shape)), key=lambda at: parts[at] is not None)
    for at in by_freedom:
        names = (*sharding.axes_of(parts[at]), axis)
        if shape[at] % math.prod(lengths[name] for name in names) == 0:
            parts[at] = names if len(names) > 1 else axis
            return NamedSharding(wanted.mesh, PartitionSpec(*parts))
    return wanted


def keep_moved(optimizer: torch.optim.Optimizer, move: Callable[[Any], None]) -> None:
    """Move the state of an optimizer whenever it is loaded, or made by a step.

    A step may make it from gradients (the momentum of ``SGD``), which lie as XLA decides.
    """
    if optimizer in _known:
        return
    _known.add(optimizer)
    known = weakref.ref(optimizer)

    def after(*_args: Any) -> None:  # a hook may get the optimizer inside another one
        found = known()
        if ACTIVE.tracer is None and found is not None:  # a compiled step keeps shardings
            move(found)

    optimizer.register_load_state_dict_post_hook(after)
    optimizer.register_step_post_hook(after)
