"""``torch_xla``: the device, launching processes, and steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_jax._version import __version__ as __version__
from torch_jax.capture import jit
from torch_jax.compat.xla import runtime, world, xla_model
from torch_jax.recorded import lazy

device = xla_model.xla_device


def devices() -> list[torch.device]:
    """Return the devices of this process: one."""
    return [device()]


real_devices = xla_model.xla_real_devices
sync = xla_model.mark_step
device_count = runtime.addressable_device_count


def manual_seed(seed: int, device: Any = None) -> None:
    """Seed the device's random numbers."""
    torch.manual_seed(seed)


@contextmanager
def step() -> Iterator[None]:
    """Run the operators of a block together, as one program, when it ends."""
    with lazy.lazy():
        yield
        xla_model.mark_step()


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    num_different_graphs_allowed: int | None = None,
) -> Any:
    """Return a function as one program of :func:`torch_jax.jit`; without one, a :func:`step`.

    A function that cannot be one program runs recorded, also with ``full_graph``;
    ``torch_jax.explain`` gives the reason.
    """
    return step() if f is None else jit.jit(f)


def launch(
    fn: Callable[..., Any],
    args: tuple = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> Any:
    """Run ``fn(index, *args)`` in a process for each device, or in this one, under ``torchrun``."""
    if "WORLD_SIZE" in os.environ:
        return fn(world.local_rank(), *args)
    nprocs = 1 if debug_single_process else None
    return world.spawn(fn, args, nprocs, start_method=start_method)
