"""Routes ``scaled_dot_product_attention`` to one fused operator with a gradient of its own.

PyTorch composes attention of matmul and softmax on devices it does not know. It has an operator
for such devices to override, ``_scaled_dot_product_fused_attention_overrideable``, with a backward
formula, but a Python device cannot make PyTorch choose it. So the choice is made here, in a kernel
above autograd. Calls that the operator does not take (other than four dims, a mask that has a
gradient, math asked for by ``torch.nn.attention.sdpa_kernel``) go PyTorch's own way.

The kernel also does PyTorch's work before the choice: it checks the arguments, and makes numbers of
a bool mask where PyTorch's math is called, which would add the mask as 0 and 1.

PyTorch has no formula for the gradient of the operator's gradient. This file gives one, by
PyTorch's math (:func:`differentiate`).

Semantics: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

from typing import Any

import torch

from torch_jax._private import functorch, pytorch
from torch_jax.eager.stand_ins import additive, takes_flash
from torch_jax.recorded.one_by_one import compile_nothing

_math = torch.ops.aten._scaled_dot_product_attention_math
_FLASH_TAKES_BOTH = torch.__version__ < "2.14"  # a mask and ``is_causal``
GRADIENT = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default


def attend(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    *,
    scale=None,
    enable_gqa=False,
) -> torch.Tensor:
    """Return attention over ``[..., length, width]``; the mask is bool or additive.

    Raises ``RuntimeError``, as on the CPU, where dtypes, devices or numbers of dims disagree.
    """
    _check(query, key, value, attn_mask, enable_gqa)
    if value.numel() == 0 or query.shape[-2] == 0:  # PyTorch checks neither sizes nor masks then
        zeros = query.new_zeros((*query.shape[:-1], value.shape[-1]))
        return sum((t.flatten()[:0].sum() for t in (query, key, value)), zeros)  # with gradients
    # the flash kernel gives results in the order of the query's dims, and older releases' takes a
    # mask beside ``is_causal``; the math gives contiguous results, and refuses both at once
    flash = takes_flash(query, key, value, dropout_p)
    flash = flash and (attn_mask is None or attn_mask.dim() in (2, 4))
    causal_mask = attn_mask is not None and is_causal
    # the operator has no tangents, and ``vmap`` asks how its examples draw random numbers
    transformed = functorch.forward_mode() or (dropout_p > 0 and functorch.transforms_active())
    fusable = _fusable(query, key, value, attn_mask, enable_gqa) and not transformed
    fusable = fusable and not (dropout_p and compile_nothing())  # nor is the CPU's kernel for it
    if not fusable or (causal_mask and not (flash and _FLASH_TAKES_BOTH)):
        options = {"scale": scale, "enable_gqa": enable_gqa}
        mask = additive(attn_mask, query)
        return _math(query, key, value, mask, dropout_p, is_causal, **options)[0]
    is_spread = type(key) is not torch.Tensor and hasattr(key, "device_mesh")  # lies in parts
    if is_spread and key.shape[1] != query.shape[1]:  # which must be as many heads as the query's
        each = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(each, dim=1) for t in (key, value))
    if attn_mask is not None:
        attn_mask.expand(*query.shape[:-1], key.shape[-2])  # raises where it does not fit
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    if not flash:  # the result is in the order of the query's dims
        query = query.contiguous()
    return torch.ops.aten._scaled_dot_product_fused_attention_overrideable(
        query, key, value, attn_mask, dropout_p, is_causal, False, scale=scale
    )[0]


def _check(query, key, value, attn_mask, enable_gqa) -> None:
    """Check as PyTorch does, which raises its own errors."""
    tensors = (query, key, value)
    agree = all(t.dtype == query.dtype and t.device == query.device for t in tensors)
    known_mask = attn_mask is None or attn_mask.dtype in (torch.bool, torch.float32, query.dtype)
    if not (agree and known_mask and min(t.dim() for t in tensors) >= 2):
        torch.ops.aten.scaled_dot_product_attention.default.decompose(query, key, value, attn_mask)
    if enable_gqa and min(t.dim() for t in tensors) > 2 and value.numel():
        if 0 in (key.shape[-3], value.shape[-3]):
            raise RuntimeError(  # PyTorch's math divides by the heads, which ends the process
                "scaled_dot_product_attention with enable_gqa needs heads of keys and values, but "
                f"key is {list(key.shape)} and value {list(value.shape)}: give each at least one "
                "head."
            )


def _fusable(query, key, value, attn_mask, enable_gqa) -> bool:
    tensors = (query, key, value)
    if not (torch.backends.cuda.flash_sdp_enabled() or torch.backends.cuda.cudnn_sdp_enabled()):
        return False  # sdpa_kernel(SDPBackend.MATH) and the like
    if any(t.dim() != 4 or t.dtype != query.dtype or t.numel() == 0 for t in tensors):
        return False
    if attn_mask is not None and (attn_mask.device != query.device or attn_mask.requires_grad):
        return False  # second derivatives of a mask work as on the CPU
    batch = all(t.shape[0] == query.shape[0] for t in tensors)
    heads = key.shape[1] == value.shape[1] and (
        key.shape[1] == query.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)
    )
    lengths = key.shape[2] == value.shape[2] and query.shape[3] == key.shape[3]
    return batch and heads and lengths and query.dtype.is_floating_point


def differentiate(grad, query, key, value, bias, wanted, *rest, scale=None) -> Any:
    """Return the operator's gradient, by differentiable operators where it needs a gradient too."""
    if grad is None:  # undefined: no output depends on the result
        return (None,) * 4
    operands = (grad, query, key, value, bias)
    again = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)
    dropout, is_causal = rest[6:8]
    if again and not dropout:
        return _by_definition(*operands, wanted, is_causal, scale)
    with pytorch.below_autograd():
        grads = GRADIENT(*operands, wanted, *rest, scale=scale)
    if not again:
        return grads
    tensors = [t for t in (*grads, *operands) if t is not None]
    node = pytorch.NodeThatRaises(  # the mask of dropout is known to the kernel only
        "scaled_dot_product_attention with dropout has no second derivative on device jax: "
        "set dropout_p=0, or use torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
        len(tensors),
    )
    found = iter(node(*tensors))
    return tuple(None if grad is None else next(found) for grad in grads)


def _by_definition(grad, query, key, value, bias, wanted, is_causal, scale) -> tuple:
    """Return gradients of attention as sums and products; half types are widened for it."""
    wide = torch.float32 if query.dtype.itemsize < 4 else query.dtype
    each = query.shape[1] // key.shape[1]
    q, k, v, g = (t.to(wide) for t in (query, key, value, grad))
    k, v = (t.repeat_interleave(each, dim=1) for t in (k, v))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.mT * scale
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if bias is not None:
        scores = scores + additive(bias, q).to(wide)
    weights = torch.ops.aten._safe_softmax(scores, -1)
    of_weights = g @ v.mT
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    of_key, of_value = of_scores.mT @ q * scale, weights.mT @ g
    grads = [
        of_scores @ k * scale,
        *(t.unflatten(1, (key.shape[1], each)).sum(2) for t in (of_key, of_value)),
        None if bias is None else of_scores.sum_to_size(bias.shape),
    ]
    rows = zip(grads, (query, key, value, query), wanted, strict=True)
    return tuple(g.to(t.dtype) if asked and g is not None else None for g, t, asked in rows)
