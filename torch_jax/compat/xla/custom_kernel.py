"""``torch_xla.experimental.custom_kernel``: attention, and kernels of Pallas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from torch_jax.dispatch.call_jax import form_of
from torch_jax.interop.from_jax import from_jax_function
from torch_jax.memory import dtypes


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
        if mask.dtype == torch.bool:
            mask = mask & below
        else:
            mask = mask.masked_fill(~below, float("-inf"))
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
    operator = from_jax_function(kernel)

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
