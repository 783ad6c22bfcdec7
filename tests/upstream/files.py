"""Which files of PyTorch's folder ``test`` are run where none is named, and names of tests.

Tests of single operators by its database are left out: :mod:`tests.conformance` asks them.
"""

import re

FILES = (
    "test_torch.py",
    "test_view_ops.py",
    "test_indexing.py",
    "test_reductions.py",
    "test_shape_ops.py",
    "test_scatter_gather_ops.py",
    "test_sort_and_select.py",
    "test_tensor_creation_ops.py",
    "test_type_promotion.py",
    "test_segment_reductions.py",
    "test_nn.py",
    "nn/test_convolution.py",
    "nn/test_dropout.py",
    "nn/test_embedding.py",
    "nn/test_multihead_attention.py",
    "nn/test_pooling.py",
    "test_transformers.py",
)


RANKS = "distributed/"
"""The folder with tests of many processes or threads; ``FILES`` has those that are run of it."""


def anywhere(name: str, device: str) -> str:
    """The name of a test without the device in it.

    >>> anywhere("test_sum_jax_float32", "jax")
    'test_sum_*_float32'
    """
    return re.sub(rf"_{device}(?=_|$)", "_*", name)
