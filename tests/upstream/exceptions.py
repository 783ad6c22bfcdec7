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
    "complex32 has no twin in JAX": [
        "* .*_complex32",
        "test_torch.py test_(copy__jax_.*|complex_half_experimental_warning_jax)",
        "test_tensor_creation_ops.py test_tensor_factories_empty_jax",
        "test_linalg.py test_norm_complexhalf_jax",
    ],
    "the test is for the CPU, and makes tensors there beside those of the device": [
        "test_scatter_gather_ops.py test_(gather|scatter)_expanded_index_jax_.*",
        "test_nn.py test_activations_bfloat16_half_cpu_jax_.*",
        "test_nn.py test_transformerencoderlayer_fast_path_jax_float64",
    ],
    "the test makes NumPy arrays of tensors of the device": [
        "test_shape_ops.py test_diagonal_multidim_jax_float32",
        "test_type_promotion.py test_numpy_array_binary_ufunc_promotion_jax_.*",
        "test_tensor_creation_ops.py test_(alias|copy)_from_(numpy|buffer)_jax_.*",
        "test_tensor_creation_ops.py test_from_file_shared_(True|False)_jax",
    ],
    "the test expects that arrays given by DLPack stay on the CPU": [
        "test_tensor_creation_ops.py test_(alias|copy)_from_dlpack_jax_.*",
    ],
    "the test expects what CUDA's kernels alone refuse, and the CPU's compute": [
        "test_torch.py test_scatter_reduce_multiply_unsupported_dtypes_jax_.*",
        "test_torch.py test_addcmul_cuda_errors_with_cpu_scalars_jax",
        "test_nn.py "
        "test_upsamplingBiMode2d_nonsupported_dtypes_.*_(bilinear|bicubic)_uint8_jax_uint8",
        "test_nn.py test_upsamplingNearest2d_launch_fail_jax",
        "test_linalg.py test__int_mm_errors_jax",
    ],
    "the test is about pinned memory, streams and other properties of CUDA": [
        "test_torch.py test_(pin_memory_from_constructor|sync_warning)_jax",
        "test_autograd.py test_(pin_memory|side_stream_backward_overlap)_jax",
        "test_autograd.py test_warn_on_accumulate_grad_stream_mismatch_flag_jax",
        "test_nn.py test_device_mask_jax",
    ],
    "copies on write are made by storages of JAX arrays, not by PyTorch's allocator": [
        "test_torch.py test_(lazy_clone|parallel_cow).*",
    ],
    "random_ warns of bounds once for each of them, when its program is made": [
        "test_tensor_creation_ops.py test_random_from_to_jax_(b?float16|float32|float64)",
    ],
    "map_ and map2_ are for CPU tensors": ["test_torch.py test_broadcast_fn_map2?_jax"],
    "the test is one of speed or of size": [
        "test_torch.py test_index_add_large_inputs_jax",
        "test_tensor_creation_ops.py test_randperm_jax",
    ],
    "PyTorch's Python metas number the strides of dims of size one in another way": [
        "test_tensor_creation_ops.py "
        "test_like_fn_stride_proparation_vs_tensoriterator_unary_op_jax",
    ],
    "strided nested tensors are not there": ["test_nn.py test_TransformerEncoderLayer_empty_jax"],
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
