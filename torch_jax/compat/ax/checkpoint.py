"""``torchax.checkpoint``: states as checkpoints of flax's, which programs of JAX read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from torch_jax.compat.ax.environment import default_env


def save_checkpoint(state: dict[str, Any], path: str, step: int = 0) -> None:
    """Save a tree of tensors and arrays in a folder, as the checkpoint of a step.

    ``torch_jax.save_orbax`` writes tensors over many devices in their parts, and
    ``torch.distributed.checkpoint`` without leaving PyTorch.
    """
    from flax.training import checkpoints

    arrays = default_env().t2j_copy(state)
    checkpoints.save_checkpoint(Path(path).absolute(), arrays, step=step, overwrite=True)


def load_checkpoint(path: str) -> dict[str, Any]:
    """Return the arrays of a folder of :func:`save_checkpoint`, or of a file of ``torch.save``.

    Raises:
      FileNotFoundError: the path is neither.
    """
    from flax.training import checkpoints

    if Path(path).is_dir():
        state = checkpoints.restore_checkpoint(Path(path).absolute(), target=None)
        if state is None:
            raise FileNotFoundError(f"No checkpoint found at {path}")
        return state
    if not Path(path).is_file():
        raise FileNotFoundError(f"No such file or directory: {path}")
    return default_env().t2j_copy(torch.load(path, map_location="cpu", weights_only=False))
