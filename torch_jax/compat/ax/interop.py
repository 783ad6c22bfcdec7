"""``torchax.interop``: values and functions of JAX as PyTorch's, and the other way round.

``torch_view`` and ``jax_view`` convert values as ``torch_jax.from_jax`` and ``to_jax`` do, and
functions as ``from_jax_function`` and ``to_jax_function`` do, with two differences. A JAX function
is called directly, not compiled, and gradients of PyTorch's do not flow through it:
:func:`j2t_autograd` lets them. A function under :func:`jax_jit` draws its random numbers from a
key that every call passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from torch_jax.compat.ax.jittable import JittableModule as JittableModule
from torch_jax.compat.ax.jittable import extract_all_buffers as extract_all_buffers
from torch_jax.compat.ax.jittable import set_all_buffers as set_all_buffers
from torch_jax.compat.ax.views import call_jax as call_jax
from torch_jax.compat.ax.views import call_torch as call_torch
from torch_jax.compat.ax.views import jax_view as jax_view
from torch_jax.compat.ax.views import jax_view_elem as jax_view_elem
from torch_jax.compat.ax.views import jitted, of_arrays
from torch_jax.compat.ax.views import torch_view as torch_view
from torch_jax.compat.ax.views import torch_view_elem as torch_view_elem
from torch_jax.interop.from_jax import from_jax_function

shard_map = jax.shard_map


def j2t_autograd(function: Callable[..., Any], call_jax: Any = None) -> Callable[..., Any]:
    """Return a JAX function as one of tensors, through which PyTorch's gradients flow."""
    return from_jax_function(function)


def wrap_jax_jit(
    torch_function: Callable[..., Any],
    jax_jit_func: Callable[..., Any] = jax.jit,
    kwargs_for_jax: dict[str, Any] | None = None,
) -> Any:
    """Return a function of tensors under a transformation of JAX's, as a function of tensors."""
    options = dict(kwargs_for_jax or {})
    if jax_jit_func is jax.jit:
        return jitted(torch_function, options)
    return torch_view(jax_jit_func(of_arrays(torch_function), **options))


def jax_jit(
    torch_function: Callable[..., Any],
    kwargs_for_jax_jit: dict[str, Any] | None = None,
    fix_for_buffer_donation: bool = False,
) -> Any:
    """Return a function of tensors under ``jax.jit``: one program, which JAX differentiates.

    Random operators draw other numbers at each call, from PyTorch's generator of the device.
    """
    return wrap_jax_jit(torch_function, jax.jit, kwargs_for_jax_jit)


def jax_shard_map(
    torch_function: Callable[..., Any], kwargs_for_jax_shard_map: dict[str, Any] | None = None
) -> Any:
    """Return a function of tensors under ``jax.shard_map``."""
    return wrap_jax_jit(torch_function, shard_map, kwargs_for_jax_shard_map)


def jax_value_and_grad(
    torch_function: Callable[..., Any], kwargs_for_value_and_grad: dict[str, Any] | None = None
) -> Any:
    """Return a function of tensors under ``jax.value_and_grad``."""
    return wrap_jax_jit(torch_function, jax.value_and_grad, kwargs_for_value_and_grad)


def gradient_checkpoint(
    torch_function: Callable[..., Any], kwargs: dict[str, Any] | None = None
) -> Any:
    """Return a function of tensors under ``jax.checkpoint``."""
    return wrap_jax_jit(torch_function, jax.checkpoint, kwargs)


fori_loop = torch_view(jax.lax.fori_loop)
