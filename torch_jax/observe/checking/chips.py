"""The figures of chips."""

from __future__ import annotations

from typing import NamedTuple


class Chip(NamedTuple):
    """The figures of one chip.

    Attributes:
      flops: a second, at most, of matrix products in bfloat16.
      memory: bytes.
      bandwidth: bytes a second to and from memory.
    """

    flops: float
    memory: float
    bandwidth: float


_GB, _GIB = 1e9, 2.0**30
CHIPS = {
    "v5e": Chip(197e12, 16 * _GB, 819 * _GB),
    "v5p": Chip(459e12, 95 * _GIB, 2765 * _GB),
    "v6e": Chip(918e12, 32 * _GB, 1600 * _GB),
    "h100": Chip(989e12, 80 * _GB, 3350 * _GB),
    "h200": Chip(989e12, 141 * _GB, 4800 * _GB),
    "b200": Chip(2250e12, 180 * _GB, 7700 * _GB),
}
"""TPUs after docs.cloud.google.com/tpu/docs, GPUs after NVIDIA's data sheets (H100 SXM, H200 SXM,
HGX B200), without sparsity."""
