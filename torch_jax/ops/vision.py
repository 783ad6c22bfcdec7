"""Operators of torchvision, where that package is installed."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torch_jax.ops.buckets import compress
from torch_jax.ops.registry import op


@op("torchvision::nms", concrete=True, meta=False)
def nms(dets, scores, iou_threshold):
    """Suppress non-maxima: return indices of the boxes kept, best score first.

    A box is dropped where a better one kept covers more than ``iou_threshold`` of their union.
    See https://docs.pytorch.org/vision/stable/generated/torchvision.ops.nms.html
    """
    order = jnp.argsort(-scores, stable=True)
    if not len(order):
        return order
    return compress(order, _kept(dets[order], iou_threshold))


@jax.jit
def _kept(boxes: jax.Array, threshold: jax.Array) -> jax.Array:
    overlap = _intersection_over_union(boxes) > threshold
    later = jnp.arange(len(boxes))

    def suppress(i, kept):
        return kept & ~(overlap[i] & (later > i) & kept[i])

    return jax.lax.fori_loop(0, len(boxes), suppress, jnp.ones(len(boxes), jnp.bool_))


def _intersection_over_union(boxes: jax.Array) -> jax.Array:
    """Return the overlap of each pair of boxes (x1, y1, x2, y2)."""
    low, high = boxes[:, :2], boxes[:, 2:]
    common = jnp.minimum(high[:, None], high) - jnp.maximum(low[:, None], low)
    shared = jnp.prod(jnp.maximum(common, 0), -1)
    area = jnp.prod(high - low, -1)
    return shared / (area[:, None] + area - shared)
