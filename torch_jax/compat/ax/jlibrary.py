"""``torchax.ops.jlibrary``: operators of libraries as named functions of the exported program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from torch_jax.compat.ax.interop import of_arrays
from torch_jax.compat.ax.jaten import op


def register_jax_composite(
    composite_name: str, impl: Callable[..., Any], *ops: Any, **jit_args: Any
) -> None:
    """Replace operators by a function of arrays, which has this name under ``jax.jit``."""

    def named(*args: Any) -> Any:
        return impl(*args)

    named.__name__ = named.__qualname__ = composite_name
    op(*ops)(jax.jit(named, **jit_args))


def register_torch_composite(
    composite_name: str, impl: Callable[..., Any], *ops: Any, **jit_args: Any
) -> None:
    """Replace operators by a function of tensors, or a module, which has this name."""
    register_jax_composite(composite_name, of_arrays(lambda *args: impl(*args)), *ops, **jit_args)
