"""What ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` call in evaluation.

One operator is the whole attention block, or the whole layer. They have no gradients.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from torch_jax.ops.activation import gelu
from torch_jax.ops.attention import product
from torch_jax.ops.matmul import dot
from torch_jax.ops.norm import native_layer_norm
from torch_jax.ops.registry import op


def _linear(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """``x @ weight.T + bias``, rounded once."""
    out = dot(x, weight, ((x.ndim - 1,), (1,)))
    return (out + bias.astype(out.dtype)).astype(x.dtype)


def _refuse(query, key, value, embed_dim: int, num_head: int, qkv_weight, qkv_bias) -> None:
    """What the CPU refuses; PyTorch's meta function takes everything."""
    if query.ndim != 3:
        raise ValueError(f"expected 3-D `query`, got {query.ndim}-D tensor")
    if query.shape[-1] != embed_dim:
        raise ValueError(f"embed_dim {embed_dim} is not the last dimension of {query.shape}")
    if query.shape != key.shape or key.shape != value.shape:
        raise ValueError("expected `query`/`key`/`value` shapes to match")
    if qkv_weight.ndim != 2 or qkv_weight.shape[0] != 3 * embed_dim:
        raise ValueError("expected `qkv_weight` first dim to be 3x embed_dim")
    if qkv_bias.ndim != 1 or qkv_bias.shape[0] != 3 * embed_dim:
        raise ValueError("expected 1-D `qkv_bias` of 3x embed_dim")
    if embed_dim % num_head:
        raise ValueError("`embed_dim` must divide evenly by `num_heads`")


def _mask(mask: Any, mask_type: int | None, shape: tuple[int, ...]) -> Any:
    """What is masked of the scores; type 0 is for queries and keys, 1 for keys, 2 for all."""
    batch, _, length, keys = shape
    expected = {0: (length, keys), 1: (batch, keys), 2: shape}
    if mask_type not in expected:
        if mask.shape != shape:
            raise ValueError("Mask Type should be defined")
    elif mask.shape != expected[mask_type]:
        raise ValueError(f"mask of type {mask_type} should be of shape {expected[mask_type]}")
    mask = mask.astype(bool)
    return mask[:, None, None, :] if mask_type == 1 else mask


def _attend(
    query, key, value, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type
) -> tuple[jax.Array, jax.Array]:
    """The block's output, and the weights of each head."""
    weights, biases = jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3)
    heads = []
    for x, weight, bias in zip((query, key, value), weights, biases, strict=True):
        out = _linear(x, weight, bias)
        heads.append(out.reshape(*out.shape[:2], num_head, -1).swapaxes(1, 2))
    q, k, v = heads
    scores = product("...qd,...kd->...qk", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(_mask(mask, mask_type, scores.shape), -jnp.inf, scores)
    attention = jax.nn.softmax(scores, -1)  # NaN where all is masked, as on CPU
    mixed = product("...qk,...kd->...qd", attention, v).swapaxes(1, 2)
    return _linear(
        mixed.reshape(query.shape).astype(query.dtype), proj_weight, proj_bias
    ), attention


@op("_native_multi_head_attention")
def native_multi_head_attention(
    query,
    key,
    value,
    embed_dim,
    num_head,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    mask=None,
    need_weights=True,
    average_attn_weights=True,
    mask_type=None,
):
    """Attention of (batch, length, features), and its weights or None."""
    _refuse(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias)
    if not query.size:
        return query, None
    parameters = qkv_weight, qkv_bias, proj_weight, proj_bias
    out, attention = _attend(query, key, value, num_head, *parameters, mask, mask_type)
    if not need_weights:
        return out, None
    return out, attention.mean(1) if average_attn_weights else attention


# PyTorch's meta function gives the strides of src
@op("_transformer_encoder_layer_fwd", meta=False)
def transformer_encoder_layer(
    src,
    embed_dim,
    num_heads,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    use_gelu,
    norm_first,
    eps,
    norm_weight_1,
    norm_bias_1,
    norm_weight_2,
    norm_bias_2,
    ffn_weight_1,
    ffn_bias_1,
    ffn_weight_2,
    ffn_bias_2,
    mask=None,
    mask_type=None,
):
    """Attention and a perceptron, each with a residual and a norm before or behind it."""
    _refuse(src, src, src, embed_dim, num_heads, qkv_weight, qkv_bias)
    if not src.size:
        return src

    def attend(x):
        parameters = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _attend(x, x, x, num_heads, *parameters, mask, mask_type)[0]

    def perceive(x):
        hidden = _linear(x, ffn_weight_1, ffn_bias_1)
        hidden = gelu(hidden) if use_gelu else jnp.maximum(hidden, 0)
        return _linear(hidden.astype(x.dtype), ffn_weight_2, ffn_bias_2)

    x = src
    blocks = (attend, norm_weight_1, norm_bias_1), (perceive, norm_weight_2, norm_bias_2)
    for block, weight, bias in blocks:

        def norm(x, weight=weight, bias=bias):
            return native_layer_norm(x, (embed_dim,), weight, bias, eps)[0]

        x = x + block(norm(x)) if norm_first else norm(x + block(x))
    return x


@op("_nested_tensor_from_mask_left_aligned", meta=False, concrete=True)
def nested_tensor_from_mask_left_aligned(t, mask):
    """False, as for a mask that has holes: ``nn.TransformerEncoder`` then makes no nested tensor.

    The device has none. Its outputs at padded positions are then not zeros, as on the CPU in
    evaluation, but what they are in training.
    """
    return False
