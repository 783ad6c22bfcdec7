"""Functions as programs: loops, pure functions, attention, functions and kernels of JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree

from torch_jax.capture import jit
from torch_jax.compat.xla.fsdp import Wrapper
from torch_jax.dispatch.call_jax import form_of
from torch_jax.interop import from_jax
from torch_jax.interop import scan_layers as own
from torch_jax.memory import dtypes


def scan(fn: Callable[..., Any], init: Any, xs: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Run ``carry, y = fn(carry, x)`` along the first dimension of ``xs``; return carry and ``ys``.

    The loop is Python's, recorded with the rest of a step: the function may do anything, and
    gradients flow to all tensors that it uses. A program of as many bodies is long for thousands of
    rounds; ``torch._higher_order_ops.scan`` compiles one body.
    """
    leaves, structure = _pytree.tree_flatten(xs)
    carry = _pytree.tree_map_only(torch.Tensor, torch.clone, init)
    results = []
    for rows in zip(*(leaf.unbind() for leaf in leaves), strict=True):
        carry, result = fn(carry, _pytree.tree_unflatten(list(rows), structure))
        results.append(_pytree.tree_map_only(torch.Tensor, torch.clone, result))
    return carry, _pytree.tree_map(lambda *ys: torch.stack(ys), *results)


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: torch.Tensor,
    partition_fn: Any = None,
    is_layer_pure: bool = False,
) -> torch.Tensor:
    """Return the output of all layers; under ``torch_xla.compile`` one of them is compiled."""
    return own.scan_layers(list(layers), input_data)


def assume_pure(fn: Callable[..., Any], *, add_rng_seed_argument: bool = False) -> Any:
    """Return a function as one program: the values that it reads are checked at each call."""
    return jit.jit(fn)


class PureModule(Wrapper):
    """A module whose forward pass is one program."""

    def __init__(self, module: nn.Module):
        super().__init__(module)
        self._compiled = jit.jit(module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result."""
        return self._compiled(*args, **kwargs)


def call_jax(
    jax_func: Callable[..., Any], args: Any, kwargs: Any = None, name: str | None = None
) -> Any:
    """Return the result of a JAX function for tensors; gradients flow through it."""
    return from_jax.call_jax(jax_func, *args, **(kwargs or {}))


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
    """Return attention whose scores are never kept: ``F.scaled_dot_product_attention``.

    docs/attention.md names the kernels; over a mesh the result is laid out as the arguments are, so
    ``partition_spec`` has no effect.
    """
    mask = ab
    if q_segment_ids is not None and kv_segment_ids is not None:
        same = q_segment_ids[:, None, :, None] == kv_segment_ids[:, None, None, :]
        mask = same if ab is None else ab.masked_fill(~same, float("-inf"))
    if mask is not None and causal:
        rows, columns = q.shape[-2], k.shape[-2]
        below = torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril()
        is_bool = mask.dtype == torch.bool
        mask = mask & below if is_bool else mask.masked_fill(~below, float("-inf"))
    return F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal and mask is None, scale=sm_scale
    )


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return a function of arrays that calls a kernel of Pallas, as one of tensors.

    Its outputs are found when it is traced. ``torch_jax.pallas_op`` takes the kernel itself, with a
    backward pass, and interprets it on the CPU.
    """
    operator = from_jax.from_jax_function(kernel)

    def call(*args: Any, static_argnums: Any = None, static_argnames: Any = None, **kwargs: Any):
        return operator(*args, **kwargs)

    return call


convert_torch_dtype_to_jax = dtypes.to_jax
to_jax_shape_dtype_struct = form_of


def jax_import_guard() -> None:
    """Do nothing: the device is JAX's."""


def requires_jax(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function: JAX is there."""
    return func
