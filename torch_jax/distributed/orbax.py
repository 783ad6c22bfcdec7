"""State dicts as checkpoints of orbax, which programs of JAX read without torch.

Orbax is an option: ``pip install torch_jax[orbax]``.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import jax
import torch
from torch import distributed as dist

from torch_jax.core import errors
from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes, storage, transfer


def save_orbax(folder: str | os.PathLike[str], state: Any) -> None:
    """Write a state dict as a checkpoint of orbax; sharded tensors are written in parts.

    Args:
      folder: the new checkpoint; an old one of this name is replaced when the new one is whole.
      state: dicts and lists of tensors, numbers and text, as ``state_dict()`` gives them.

    Raises:
      ImportError: orbax is not installed.
      RuntimeError: there are several processes.
    """
    orbax = _orbax()
    with x64():
        given = orbax.args.PyTreeSave(jax.tree_util.tree_map(_array, state))
        _checkpointer(orbax).save(Path(folder).absolute(), given, force=True)


def load_orbax(folder: str | os.PathLike[str], state: Any) -> Any:
    """Read a checkpoint of orbax into the tensors of a state dict, with their shardings.

    Args:
      folder: written by :func:`save_orbax`, or by a program of JAX's.
      state: of the structure that was saved.

    Returns:
      ``state`` with the saved numbers and text; its tensors are the same objects.

    Raises:
      ImportError: orbax is not installed.
      RuntimeError: there are several processes.
    """
    orbax = _orbax()
    with x64():
        wanted = jax.tree_util.tree_map(_array, state)  # which has the forms and shardings
        how = orbax.checkpoint_utils.construct_restore_args(wanted)
        given = orbax.args.PyTreeRestore(wanted, restore_args=how)
        found = _checkpointer(orbax).restore(Path(folder).absolute(), given)
        return jax.tree_util.tree_map(_filled, state, found)


def _orbax() -> Any:
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise RuntimeError(
            "orbax saves the tensors of one process here: use torch.distributed.checkpoint for "
            "those of several"
        )
    missing = "orbax is not installed: pip install torch_jax[orbax]"
    return errors.require("orbax.checkpoint", missing)


@functools.cache
def _checkpointer(orbax: Any) -> Any:
    """Return the checkpointer of the process: to close one would close parts that others share."""
    return orbax.Checkpointer(orbax.PyTreeCheckpointHandler())


def _array(value: Any) -> Any:
    """Return the value for orbax: the array of a tensor, with its devices."""
    if not isinstance(value, torch.Tensor):
        return value
    if storage.is_jax(value):
        return transfer.value_of(value.detach())
    return dtypes.numpy_of(value.contiguous())


def _filled(value: Any, found: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return found
    with torch.no_grad():
        value.copy_(storage.wrap(jax.numpy.asarray(found)))
    return value
