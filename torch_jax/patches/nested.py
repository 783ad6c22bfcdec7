"""Attention over jagged nested tensors, which PyTorch composes of strided nested ones."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from torch_jax._private import pytorch
from torch_jax.core.patching import around

_MODULE = "torch.nested._internal.ops"


@around(f"{_MODULE}.jagged_scaled_dot_product_attention", _MODULE)
def _patch_attention(
    original: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Strided nested tensors do not exist on the device: the rows are padded and masked instead."""
    if attn_mask is None and all(map(_is_ragged, (query, key, value))):
        return _attend(query, key, value, *args, **kwargs)
    return original(query, key, value, attn_mask, *args, **kwargs)


def _is_ragged(tensor: Any) -> bool:
    """Return whether a tensor of the device is ``[batch, heads, ragged, width]``."""
    ours = tensor.device.type == pytorch.DEVICE_TYPE and tensor.is_nested
    return ours and tensor.dim() == 4 and tensor._ragged_idx == 2


def _attend(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return attention of ``[batch, heads, ragged, width]``, without a mask."""
    if is_causal:
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found: nested tensors for "
            "query / key are not supported when is_causal=True. Pad them with to_padded_tensor()."
        )
    (padded, where), (keys, valid), (values, _) = map(_padded, (query, key, value))
    mask = torch.zeros(keys.shape[:2], dtype=torch.bool, device=keys.device)
    mask[valid] = True
    result = functional.scaled_dot_product_attention(
        padded.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=mask[:, None, None, :],
        dropout_p=dropout_p,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    rows = result.transpose(1, 2)[where]
    jagged = torch.nested.nested_tensor_from_jagged(rows, query.offsets(), query.lengths())
    return jagged.transpose(1, 2)


def _padded(nested: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Return ``[batch, longest, heads, width]``, and the batches and places of its real rows."""
    rows = nested.transpose(1, 2).values()
    offsets = nested.offsets()
    number = torch.arange(rows.shape[0], device=rows.device)
    batch = torch.searchsorted(offsets[1:].contiguous(), number, right=True)
    where = batch, number - offsets[batch]
    padded = rows.new_zeros(offsets.shape[0] - 1, nested._get_max_seqlen(), *rows.shape[1:])
    return padded.index_put(where, rows), where
