"""Upstream tests that do not pass on jax, each with its reason.

A line is a file, or ``*``, and a pattern that the whole name of a test must match; the device is
called ``jax`` there. Tests that the table names are run, and those that pass are printed: their
lines can go. :data:`OTHER_DEVICES` is a rule in place of a list.
"""

from __future__ import annotations

import re

# Tests lose their restrictions to some devices, so that jax is among them. What speaks of a device
# itself is then about that device: tests with one of these in their source are not run.
OTHER_DEVICES = re.compile(
    r"torch\.cuda\.|torch\.mps\.|torch\.xpu\.|torch\.backends\.c(uda|udnn)|\.cuda\(|mkldnn"
    r"|['\"](cuda|mps|xla|xpu)\b"
)

EXCEPTIONS: dict[str, list[str]] = {
    "complex32 has no twin in JAX": ["* .*_complex32"],
    "PyTorch's meta functions, which check arguments on the device, have other words": [
        "test_indexing.py test_broaderrors_indexing_jax",
    ],
    "quantized tensors": ["test_view_ops.py test_(flatten|ravel)_jax"],
}


def reason(file: str, name: str) -> str:
    """Why a test may fail; empty where it must pass."""
    for why, lines in EXCEPTIONS.items():
        for line in lines:
            where, pattern = line.split()
            if where in (file, "*") and re.fullmatch(pattern, name):
                return why
    return ""
