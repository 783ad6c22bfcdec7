"""JAX's libraries: their import, the default dtypes that they leave to JAX, the names of trees.

The package's own work has JAX's 64-bit types on. In code of optax or flax, which leaves dtypes to
JAX's defaults, numbers and random draws would then be of float64.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from torch_jax._private import jax_core


def require(library: str, message: str) -> None:
    """Raise if a library is missing; ``message`` says how to install it."""
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise ImportError(message) from error


def asks_for_wide(dtypes: Iterable[Any]) -> bool:
    """Return whether 64-bit types are on: by the user's setting, or since a float is of 64 bits."""
    wide = (np.dtype(np.float64), np.dtype(np.complex128))
    return jax_core.x64_setting() or any(dtype in wide for dtype in dtypes)


def part_of_path(part: Any) -> str:
    """Return a part of a path of JAX's as a name: a key, an attribute, an index."""
    found = (getattr(part, name, None) for name in ("key", "name", "idx"))
    return str(next((name for name in found if name is not None), part))


def narrowed(value: Any, wide: bool) -> Any:
    """Return an argument as JAX takes it: without 64-bit types, integers have 32 bits."""
    if wide or not isinstance(value, jax.Array) or value.dtype not in (np.int64, np.uint64):
        return value
    return value.astype(np.int32 if value.dtype == np.int64 else np.uint32)
