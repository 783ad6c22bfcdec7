"""Small modules of torchax: ``ops.mappings``, ``util``, and names for annotations, ``types``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from torch_jax.compat.ax.environment import default_env
from torch_jax.memory import dtypes

TorchValue: TypeAlias = Any
TorchCallable: TypeAlias = Callable[..., Any]
JaxValue: TypeAlias = Any
JaxCallable: TypeAlias = Callable[..., Any]


def t2j(tensor: torch.Tensor, use_dlpack: bool = True) -> Any:
    """Return a tensor of any device as an array."""
    return default_env().t2j_copy(tensor)


def j2t(array: Any, use_dlpack: bool = True) -> torch.Tensor:
    """Return an array as a tensor on the CPU."""
    return default_env().j2t_copy(array)


def t2j_dtype(dtype: torch.dtype | None) -> Any:
    """Return a dtype of PyTorch's as JAX's; None stays."""
    return None if dtype is None else dtypes.to_jax(dtype)


def j2t_dtype(dtype: Any) -> torch.dtype | None:
    """Return a dtype of JAX's as PyTorch's; None stays."""
    return None if dtype is None else dtypes.to_torch(dtype)


def partition(original: list[Any], func: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """Return the elements for which a function holds, and the others, with None in the gaps.

    >>> partition([1, "a", 2], lambda x: isinstance(x, int))
    ([1, None, 2], [None, 'a', None])
    """
    holds = [func(one) for one in original]
    pairs = list(zip(original, holds, strict=True))
    return [o if yes else None for o, yes in pairs], [None if yes else o for o, yes in pairs]


def merge(list1: list[Any], list2: list[Any]) -> list[Any]:
    """Return the elements of the first list, and those of the second where it has None.

    Raises:
      AssertionError: the lists are not of one length.

    >>> merge([1, None], [None, "a"])
    [1, 'a']
    """
    if len(list1) != len(list2):
        raise AssertionError(f"lists of {len(list1)} and of {len(list2)} elements do not pair")
    return [b if a is None else a for a, b in zip(list1, list2, strict=True)]
