"""``torch_xla.utils``, and planners of checkpoints: mostly PyTorch's own functions.

``torch.distributed.checkpoint`` takes tensors over devices in parts (docs/training-at-size.md).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner as SPMDLoadPlanner  # noqa: F401
from torch.distributed.checkpoint import DefaultSavePlanner as SPMDSavePlanner  # noqa: F401
from torch.utils.checkpoint import checkpoint as _checkpoint

from torch_jax.compat.xla.xla_model import save as save

checkpoint = functools.partial(_checkpoint, use_reentrant=True)


def load(path: Any) -> Any:
    """Return the contents of a file of :func:`save`, with tensors on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=False)


def SampleGenerator(data: Any, sample_count: int) -> list[Any]:
    """Return the same data a number of times."""
    return [data] * sample_count


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """Return a variable of the environment as a type; ``"1"`` and ``"true"`` are true."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return text.lower() in ("1", "true") if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Return whether a variable of the environment has a value that means yes."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")
