"""The fused inference operators of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``.

Where no gradient is needed these modules call one operator each. Here such an operator calls the
functions that the module calls in training: under a trace XLA fuses them itself.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from torch_jax.dispatch.storage_kernels import kernel


@kernel("_native_multi_head_attention")
def attention_block(
    query, key, value, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias,
    mask=None, need_weights=True, average_attn_weights=True, mask_type=None,
):  # fmt: skip
    """Run ``nn.MultiheadAttention``; masks are of queries and keys (0), keys (1), or all (2).

    The module turns masks of bool into 0 and -inf, and PyTorch's operator turns them back.
    """
    mask = None if mask is None else mask.bool()
    masks = {"attn_mask": mask, "key_padding_mask": None}
    if mask_type == 1:
        masks = {"attn_mask": None, "key_padding_mask": mask}
    elif mask_type == 2:
        masks["attn_mask"] = mask.flatten(0, 1)
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    out, weights = F.multi_head_attention_forward(
        query, key, value, embed_dim, num_heads, qkv_weight, qkv_bias, None, None, False, 0.0,
        proj_weight, proj_bias, training=False, need_weights=need_weights,
        average_attn_weights=average_attn_weights, **masks,
    )  # fmt: skip
    out = out.transpose(0, 1)
    if mask is None:
        return out, weights
    blind = _blind(mask, mask_type)
    if weights is not None:
        of_weights = blind.any(1) if average_attn_weights else blind
        weights = weights.masked_fill(of_weights[..., None], torch.nan)
    return out.masked_fill(blind.any(1)[..., None], torch.nan), weights


def _blind(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Return which queries see no key: NaN in the fused operators, zeros in all other attention."""
    hidden = mask.all(-1)
    if mask_type == 1:
        return hidden[:, None, None]
    return hidden if mask_type == 2 else hidden[None, None]


@kernel("_transformer_encoder_layer_fwd")
def encoder_layer(
    src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first,
    eps, norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1,
    ffn_weight_2, ffn_bias_2, mask=None, mask_type=None,
):  # fmt: skip
    """Run ``nn.TransformerEncoderLayer``: two blocks, each with a residual and a norm."""
    shape = (embed_dim,)
    projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)

    def attend(x):
        masks = (mask, False, True, mask_type)
        return attention_block(x, x, x, embed_dim, num_heads, *projections, *masks)[0]

    def perceive(x):
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    x = src
    blocks = ((attend, norm_weight_1, norm_bias_1), (perceive, norm_weight_2, norm_bias_2))
    for block, weight, bias in blocks:
        if norm_first:
            residual = block(F.layer_norm(x, shape, weight, bias, eps))
            x = (x + residual).contiguous()  # as PyTorch's, which adds to the residual in place
        else:
            x = F.layer_norm(x + block(x), shape, weight, bias, eps)
    return x


@kernel("_nested_tensor_from_mask_left_aligned")
def is_to_be_nested(tensor, mask) -> bool:
    """Return False: ``nn.TransformerEncoder`` keeps the padding, as with gradients."""
    return False
