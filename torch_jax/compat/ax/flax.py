"""``torchax.flax`` and ``torchax.checkpoint``: modules of flax, and states as its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_jax.compat.ax.environment import default_env
from torch_jax.interop.flax_module import nn_from_flax


class FlaxNNModule(nn.Module):
    """A module of flax, whose variables are made by a first call with sample arguments.

    They are those of ``flax_module.init(env.prng_key, …)``. The module is made by
    ``torch_jax.nn_from_flax``: gradients flow through it.
    """

    def __init__(self, env: Any, flax_module: Any, sample_args: tuple, sample_kwargs: Any = None):
        super().__init__()
        args, kwargs = env.t2j_copy((tuple(sample_args), dict(sample_kwargs or {})))
        variables = flax_module.init(env.prng_key, *args, **kwargs)
        self.module = nn_from_flax(flax_module, variables=variables)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the module of flax."""
        return self.module(*args, **kwargs)


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
        if (state := checkpoints.restore_checkpoint(Path(path).absolute(), target=None)) is None:
            raise FileNotFoundError(f"No checkpoint found at {path}")
        return state
    if not Path(path).is_file():
        raise FileNotFoundError(f"No such file or directory: {path}")
    return default_env().t2j_copy(torch.load(path, map_location="cpu", weights_only=False))
