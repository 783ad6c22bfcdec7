"""Upstream tests that do not pass on jax, each with its reason.

A line is a glob pattern of files and a pattern that the whole name of a test must match; the device
is called ``jax`` there. Tests that the table names are run, and those that pass are printed: their
lines can go. :data:`LEFT_OUT` has rules in place of lists.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

# Why a test is not run at all, by what its source speaks of. Tests lose their restrictions to some
# devices, so that jax is among them; one that speaks of a device itself is then about that device.
LEFT_OUT = {
    "other device": re.compile(
        r"torch\.cuda\.|torch\.mps\.|torch\.xpu\.|torch\.backends\.c(uda|udnn)|\.cuda\(|mkldnn"
        r"|['\"](cuda|mps|xla|xpu)\b"
    ),
    "many GB": re.compile(r"largeTensorTest|\(1 << 31\) \+"),
    "inductor": re.compile(r"run_and_get_triton_code|run_and_get_code|torch\._inductor"),
    "quantized": re.compile(r"quantize_per_|_quantized\b|torch\.qu?int"),
}

MORE_RANKS = "more ranks"
"""The same for a test of more processes than are started."""

EXCEPTIONS: dict[str, list[str]] = {
    "complex32 has no twin in JAX": ["* .*_complex32"],
    "the test is for the CPU, and makes tensors there beside those of the device": [
        "test_scatter_gather_ops.py test_(gather|scatter)_expanded_index_jax_.*",
    ],
    "the test compares a product of the device with one of the CPU, which adds in another order": [
        "distributed/*tensor/test_matrix_ops.py test_dtensor_mm",
    ],
    "the test expects that batch norm refuses float32 statistics beside half-precision parameters; "
    "CUDA refuses them in some backward passes only, and jax takes them in all": [
        "distributed/_composable/fsdp/test_fully_shard_mixed_precision.py "
        "test_norm_modules_(bf16|fp16)",
    ],
    "DTensor refuses random operators on the CPU only": [
        "distributed/*tensor/test_pointwise_ops.py test_dropout_errors",
    ],
    "the test makes NumPy arrays of tensors of the device": [
        "test_shape_ops.py test_diagonal_multidim_jax_float32",
    ],
}


def reason(file: str, name: str) -> str:
    """Why a test may fail; empty where it must pass."""
    for why, lines in EXCEPTIONS.items():
        for line in lines:
            where, pattern = line.split()
            if fnmatchcase(file, where) and re.fullmatch(pattern, name):
                return why
    return ""


def left_out(source: str) -> str:
    """Why a test with this source is not run; empty where it is."""
    return next((why for why, words in LEFT_OUT.items() if words.search(source)), "")
