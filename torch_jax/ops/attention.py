"""Scaled dot product attention and its gradient, each one XLA computation.

Products take their operands in the input's dtype and sum in float32; the softmax is in float32.
Shapes are (..., heads, length, features); keys and values may have fewer heads, each then serving
several of the query's.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from torch_jax.ops.matmul import precision
from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    dtype = opmath(b.dtype)
    return jnp.einsum(
        equation, a.astype(b.dtype), b, precision=precision(), preferred_element_type=dtype
    )


def _share_heads(x: jax.Array, heads: int) -> jax.Array:
    """Keys or values repeated so that there is a head for each of the query's."""
    return x if x.shape[-3] == heads else jnp.repeat(x, heads // x.shape[-3], axis=-3)


def _gather_heads(x: jax.Array, heads: int) -> jax.Array:
    """The transpose of ``_share_heads``."""
    if x.shape[-3] == heads:
        return x
    return x.reshape(*x.shape[:-3], heads, -1, *x.shape[-2:]).sum(-3)


def _scores(query, key, attn_bias, is_causal: bool, scale: float) -> jax.Array:
    scores = _product("...qd,...kd->...qk", query, key) * scale
    if attn_bias is not None:
        if attn_bias.dtype == jnp.bool_:
            scores = jnp.where(attn_bias, scores, -jnp.inf)
        else:
            scores = scores + attn_bias.astype(scores.dtype)
    if is_causal:
        q, k = scores.shape[-2:]
        scores = jnp.where(jnp.arange(q)[:, None] >= jnp.arange(k), scores, -jnp.inf)
    return scores


def _softmax(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Probabilities and log-sum-exp (kept); rows of nothing but -inf give 0 and -inf.

    Dividing by the sum is ten times as accurate as subtracting its logarithm from the scores.
    """
    largest = scores.max(-1, keepdims=True, initial=-jnp.inf)
    finite = jnp.where(largest == -jnp.inf, 0, largest)
    weights = jnp.exp(scores - finite)
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total), finite + jnp.log(total)


def _kept(key: jax.Array, dropout_p: float, like: jax.Array) -> jax.Array:
    """What dropout multiplies by: 0, or the scale of what is kept."""
    if dropout_p >= 1:
        return jnp.zeros_like(like)
    mask = jax.random.bernoulli(key, 1 - dropout_p, like.shape)
    return jnp.where(mask, jnp.asarray(1 / (1 - dropout_p), like.dtype), 0)


def _key_to_integer(key: jax.Array) -> jax.Array:
    """The two words of a PRNG key as the int64 that PyTorch's schema has room for."""
    return jax.lax.bitcast_convert_type(jax.random.key_data(key), jnp.int64)


def _key_from_integer(seed: jax.Array) -> jax.Array:
    words = jax.lax.bitcast_convert_type(seed, jnp.uint32)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def _scale(scale: float | None, query: jax.Array) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


@op(
    "_scaled_dot_product_fused_attention_overrideable",
    static=("dropout_p", "scale"),
    random="prng",
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
    prng,
):
    """Attention; rows that are masked entirely give 0.

    Also returns log-sum-exp of the scores, the query's and keys' lengths, and the PRNG key as an
    integer, from which the gradient makes the same dropout mask.
    """
    heads = query.shape[-3]
    keys, values = _share_heads(key, heads), _share_heads(value, heads)
    scores = _scores(query, keys, attn_bias, is_causal, _scale(scale, query))
    weights, log_sum_exp = _softmax(scores)
    if dropout_p:
        weights = weights * _kept(prng, dropout_p, weights)
    out = _product("...qk,...kd->...qd", weights, values)
    log_sum_exp = log_sum_exp.reshape(math.prod(query.shape[:-3]), *query.shape[-3:-1])
    lengths = query.shape[-2], key.shape[-2]
    state = _key_to_integer(prng), jnp.zeros((), jnp.int64)
    return out, log_sum_exp, None, None, *lengths, *state, None


@op("_scaled_dot_product_fused_attention_overrideable_backward", static=("dropout_p", "scale"))
def attention_backward(
    grad_out,
    query,
    key,
    value,
    attn_bias,
    grad_input_mask,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    philox_seed,
    philox_offset,
    *,
    scale=None,
):
    """Gradients of query, key, value and the bias; the softmax is computed again."""
    heads, scale = query.shape[-3], _scale(scale, query)
    keys, values = _share_heads(key, heads), _share_heads(value, heads)
    scores = _scores(query, keys, attn_bias, is_causal, scale)
    weights = dropped = _softmax(scores)[0]
    grad_weights = _product("...qd,...kd->...qk", grad_out, values)
    if dropout_p:
        kept = _kept(_key_from_integer(philox_seed), dropout_p, weights)
        dropped, grad_weights = weights * kept, grad_weights * kept
    inner = (grad_weights * weights).sum(-1, keepdims=True)
    grad_scores = weights * (grad_weights - inner)
    grads: list[Any] = [None] * 4
    if grad_input_mask[0]:
        grads[0] = _product("...qk,...kd->...qd", grad_scores, keys) * scale
    if grad_input_mask[1]:
        grad_key = _product("...qk,...qd->...kd", grad_scores, query) * scale
        grads[1] = _gather_heads(grad_key, key.shape[-3])
    if grad_input_mask[2]:
        grad_value = _product("...qk,...qd->...kd", dropped, grad_out)
        grads[2] = _gather_heads(grad_value, value.shape[-3])
    if grad_input_mask[3] and attn_bias is not None:
        grads[3] = _sum_to(grad_scores, attn_bias.shape)
    return grads


def _sum_to(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The transpose of broadcasting from ``shape``."""
    x = x.sum(range(x.ndim - len(shape)))
    axes = [i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1]
    return x.sum(axes, keepdims=True)
