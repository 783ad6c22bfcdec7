"""Which operators may compute with operands that are longer than they count, and how.

What stands behind the end of such an operand is its last element again, so that nothing is computed
that could not be: an index stays in range, a maximum what it is. Operators that add elements up are
given other elements there (:data:`FILLS`); some have functions of their own (:data:`OWN`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.attention import attention
from torch_jax.ops.promotion import promote


def _zero(dtype: Any) -> Any:
    return 0


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


# What stands behind the end of operands where it is not the last element, by operator.
FILLS: dict[str, Callable[[Any], Any]] = {
    "_safe_softmax": _lowest,
    "_softmax": _lowest,
    "bmm": _zero,
    "mm": _zero,
    "sum": _zero,
    "sum.dim_IntList": _zero,
}

# Operators whose results within the sizes that count stay what they are where operands repeat
# their last element; beside those that PyTorch calls pointwise.
IDEMPOTENT = frozenset(
    (
        "all",
        "all.dim",
        "amax",
        "amin",
        "any",
        "any.dim",
        "argmax",
        "cumsum",
        "gather",
        "index_select",
        "isin.Tensor_Scalar",
        "isin.Tensor_Tensor",
        "max",
        "max.dim",
        "min",
        "scatter.src",
        "torch_jax::copy",
    )
)

# Operators that take elements of their first operand by their place along ``dim``: others may grow.
ALONG = frozenset(("gather", "index_select", "scatter.src"))


class Operand(NamedTuple):
    """An operand that is longer than it counts, and how much counts of each dim that is."""

    array: jax.Array
    lengths: dict[int, Any]


def _cat(tensors: list[Operand], dim: int = 0) -> jax.Array:
    """Each operand is written where the one before it ends, over what is behind that end."""
    arrays = promote(*(t.array for t in tensors))
    dim %= arrays[0].ndim
    shape = list(map(max, *(a.shape for a in arrays)) if len(arrays) > 1 else arrays[0].shape)
    shape[dim] = sum(a.shape[dim] for a in arrays)
    whole, at = jnp.zeros(shape, arrays[0].dtype), 0
    for array, given in zip(arrays, tensors, strict=True):
        start = [jnp.asarray(at if d == dim else 0, jnp.int32) for d in range(array.ndim)]
        whole = lax.dynamic_update_slice(whole, array, start)
        at = at + given.lengths.get(dim, array.shape[dim])
    return whole


def _attention(
    query: Operand,
    key: Operand,
    value: Operand,
    attn_bias: Operand | None = None,
    dropout_p=0.0,
    is_causal=False,
    return_debug_mask=False,
    *,
    scale=None,
    prng,
):
    """Attention over the capacity of keys and values; what is behind their end has no weight."""
    if query.lengths or set(key.lengths) != {2} or set(value.lengths) != {2} or dropout_p:
        raise NotImplementedError("only keys and values may be longer than they count")
    counts = jnp.arange(key.array.shape[2], dtype=jnp.int32) < key.lengths[2]
    bias: Any = counts[None, None, None]
    if attn_bias is not None and attn_bias.array.dtype == np.bool_:
        bias = attn_bias.array & bias
    elif attn_bias is not None:
        bias = jnp.where(bias, attn_bias.array, -jnp.inf)
    values = jnp.where(counts[:, None], value.array, 0)  # no NaN, which no weight would hide
    found = attention(
        query.array, key.array, values, bias, dropout_p, is_causal, scale=scale, prng=prng
    )
    lengths = query.array.shape[2], key.lengths[2]
    return *found[:4], *lengths, *found[6:]


OWN: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "cat": _cat,
}
