"""JAX's libraries: their import, and the default dtypes that they leave to JAX.

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
from torch_jax.dispatch.jax_programs import NARROW


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


def narrowed(value: Any, wide: bool) -> Any:
    """Return an argument as JAX takes it, without 64-bit types unless they are on."""
    if wide or not isinstance(value, jax.Array) or value.dtype not in NARROW:
        return value
    return value.astype(NARROW[value.dtype])
