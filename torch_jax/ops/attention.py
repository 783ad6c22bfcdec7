"""Scaled dot product attention and its gradient: one operator each, in several forms.

``attention_forms`` chooses the form; this file reshapes a call for it. Shapes are (..., heads,
length, features); keys and values may have fewer heads, each then serving several of the query's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax import target
from torch_jax.ops import attention_blocks, attention_kernels
from torch_jax.ops.attention_blocks import Attention
from torch_jax.ops.attention_forms import SIZES, Call, choose, groups
from torch_jax.ops.derivatives import transposed
from torch_jax.ops.precision import current
from torch_jax.ops.registry import op


def _dropout(key: Any, dropout_p: float) -> attention_blocks.Dropout | None:
    """Return the factors of each block: 0, or the scale of the elements kept.

    They are drawn from a key of its own, by which the gradient makes the same again.
    """
    if not dropout_p:
        return None

    def kept(start: Any, shape: tuple[int, ...]) -> jax.Array:
        if dropout_p >= 1:
            return jnp.zeros(shape, jnp.float32)
        mask = jax.random.bernoulli(jax.random.fold_in(key, start), 1 - dropout_p, shape)
        return jnp.where(mask, jnp.float32(1 / (1 - dropout_p)), 0)

    return kept


def _arranged(query, key, value, bias, is_causal, scale, dropout) -> Attention:
    """Return the call in five dims: the query's heads beside the head of keys that serves them."""
    lead, heads = query.shape[:-3], query.shape[-3]
    served = key.shape[-3] if value.shape[-3] == key.shape[-3] else heads
    blocks = groups(query.shape, key.shape[-2], is_causal, SIZES[target.platform()])
    return Attention(
        query.reshape(math.prod(lead), served, heads // served, *query.shape[-2:]),
        _repeated(key, served, lead),
        _repeated(value, served, lead),
        None if bias is None else _in_five(bias, query, served),
        is_causal,
        scale,
        dropout,
        blocks,
        target.platform() == "gpu",
    )


def _repeated(x: jax.Array, heads: int, lead: tuple[int, ...]) -> jax.Array:
    """Return keys or values in four dims, for so many heads and all batches."""
    x = x if x.shape[-3] == heads else jnp.repeat(x, heads // x.shape[-3], axis=-3)
    return jnp.broadcast_to(x, (*lead, *x.shape[-3:])).reshape(math.prod(lead), *x.shape[-3:])


def _in_four(bias: jax.Array, query: jax.Array) -> jax.Array:
    """Return a mask with a batch, of which there is one, and heads."""
    lead = query.shape[:-3]
    bias = bias.reshape(*(1 for _ in range(query.ndim - bias.ndim)), *bias.shape)
    if len(lead) > 1:
        bias = jnp.broadcast_to(bias, (*lead, *bias.shape[-3:]))
        return bias.reshape(math.prod(lead), *bias.shape[-3:])
    return bias if lead else bias[None]


def _in_five(bias: jax.Array, query: jax.Array, served: int) -> jax.Array:
    bias = _in_four(bias, query)
    batch, heads, *rest = bias.shape
    if heads == 1:
        return bias[:, :, None]
    return bias.reshape(batch, served, heads // served, *rest)


def _machine() -> dict[str, Any]:
    """Return the properties of the machine by which a form is chosen."""
    platform = target.platform()
    found: dict[str, Any] = {"platform": platform, "devices": target.device_count()}
    if platform == "gpu":
        found |= {"capability": attention_kernels.capability(), "cudnn": target.cudnn()}
    return found


def _kernel(
    query, key, value, bias, is_causal, dropout_p, is_gradient=False
) -> tuple[str, Any] | None:
    """Return the platform's name and its kernel, where a kernel takes the call."""
    shapes = [x.shape for x in (query, key, value)]
    four = all(x.ndim == 4 for x in (query, key, value))
    if not four or not all(isinstance(n, int) for shape in shapes for n in shape):
        return None
    mask = None if bias is None else _in_four(bias, query).shape
    sizes = dict(zip(("query", "key", "value", "bias"), (*shapes, mask), strict=True))
    flags = {"is_causal": is_causal, "is_gradient": is_gradient, "dropout": dropout_p}
    of_dtype = {"dtype": query.dtype.name, "precision": current().matmul}
    form = choose(Call(**sizes, **flags, **of_dtype, **_machine()))
    if form == "splash" and not attention_kernels.splash_is_there():
        return None
    return attention_kernels.KERNELS.get(form)


def _on(platform: str, fast: Callable[..., Any], default: Callable[..., Any], *operands: Any):
    """Run ``fast`` where the program is lowered for ``platform``: exports may be for another."""
    return lax.platform_dependent(*operands, **{platform: fast}, default=default)


@op(
    "_scaled_dot_product_fused_attention_overrideable",
    static=("dropout_p", "scale"),
    random="prng",
    drawn_if="dropout_p",
    products=True,
)
def attention(
    query,
    key,
    value,
    attn_bias=None,
    dropout_p=0.0,
    is_causal=False,
    return_debug_mask=False,
    *,
    scale=None,
    prng=None,
):
    """Return attention; rows that are masked entirely give 0.

    Also returns log-sum-exp of the scores, the query's and keys' lengths, and the PRNG key as an
    integer, from which the gradient makes the same dropout mask; 0 where there is no dropout.
    """
    scale = _scale(scale, query)

    def by_blocks(query, key, value):
        dropout = _dropout(prng, dropout_p)
        call = _arranged(query, key, value, attn_bias, is_causal, scale, dropout)
        out, sums = attention_blocks.forward(call)
        out = out.reshape(*query.shape[:-1], value.shape[-1]).astype(query.dtype)
        return out, sums.reshape(math.prod(query.shape[:-3]), *query.shape[-3:-1])

    if (found := _kernel(query, key, value, attn_bias, is_causal, dropout_p)) is None:
        out, log_sum_exp = by_blocks(query, key, value)
    else:
        platform, kernel = found
        bias = None if attn_bias is None else _in_four(attn_bias, query)

        def fast(query, key, value):
            out, sums = kernel(query, key, value, bias, is_causal, scale)
            return out.astype(query.dtype), sums

        out, log_sum_exp = _on(platform, fast, by_blocks, query, key, value)
    seed = nothing = jnp.zeros((), jnp.int64)
    if prng is not None:  # the two words of a key, as the int64 that PyTorch's schema has room for
        seed = lax.bitcast_convert_type(jax.random.key_data(prng), jnp.int64)
    return out, log_sum_exp, None, None, query.shape[-2], key.shape[-2], seed, nothing, None


def _scale(scale: float | None, query: jax.Array) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


@op(
    "_scaled_dot_product_fused_attention_overrideable_backward",
    static=("dropout_p", "scale"),
    products=True,
)
def attention_backward(
    grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, *options, scale=None
):
    """Return gradients of query, key, value and bias; the scores are computed again."""
    dropout_p, is_causal, philox_seed, _ = options[-4:]
    scale, of_bias = _scale(scale, query), grad_input_mask[3] and attn_bias is not None

    def by_blocks(query, key, value, grad_out):
        dropout = None
        if dropout_p:
            words = lax.bitcast_convert_type(philox_seed, jnp.uint32)
            dropout = _dropout(jax.random.wrap_key_data(words, impl="threefry2x32"), dropout_p)
        call = _arranged(query, key, value, attn_bias, is_causal, scale, dropout)
        rows = call.query.shape[:-1]
        grad, result = (x.reshape(*rows, x.shape[-1]) for x in (grad_out, out))
        sums = logsumexp.reshape(rows)
        of_query, *rest, of_mask = attention_blocks.backward(call, grad, result, sums, of_bias)
        served, lead = call.key.shape[1], query.shape[:-3]
        grads = [
            transposed(lambda x: _repeated(x, served, lead), of, x.shape)
            for of, x in zip(rest, (key, value), strict=True)
        ]
        if of_mask is not None:
            of_mask = transposed(lambda x: _in_five(x, query, served), of_mask, attn_bias.shape)
        return of_query.reshape(query.shape), *grads, of_mask

    given = query, key, value, attn_bias, is_causal, dropout_p
    found = None if of_bias else _kernel(*given, is_gradient=True)
    if found is None:
        grads = by_blocks(query, key, value, grad_out)
    else:
        platform, kernel = found
        bias = None if attn_bias is None else _in_four(attn_bias, query)

        def fast(query, key, value, grad_out):
            operands = (query, key, value)
            return attention_kernels.gradients(kernel, operands, bias, is_causal, scale, grad_out)

        def plain(*operands):
            grads = by_blocks(*operands)[:3]
            return tuple(g.astype(x.dtype) for g, x in zip(grads, operands[:3], strict=True))

        grads = *_on(platform, fast, plain, query, key, value, grad_out), None
    asked = zip(grads, grad_input_mask, strict=True)
    return [grad if wanted else None for grad, wanted in asked]
