"""The files of PyTorch's folder ``test`` that run by default, and names of tests.

``FILES`` are glob patterns: a folder may have another name in another version of PyTorch. Tests of
single operators by its database are left out: :mod:`tests.conformance` asks them.
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
    "test_autograd.py",
    "test_linalg.py",
    "test_segment_reductions.py",
    "test_nn.py",
    "nn/test_convolution.py",
    "nn/test_dropout.py",
    "nn/test_embedding.py",
    "nn/test_multihead_attention.py",
    "nn/test_pooling.py",
    "test_transformers.py",
    "distributed/_composable/fsdp/test_fully_shard_autograd.py",
    "distributed/_composable/fsdp/test_fully_shard_clip_grad_norm_.py",
    "distributed/_composable/fsdp/test_fully_shard_comm.py",
    "distributed/_composable/fsdp/test_fully_shard_frozen.py",
    "distributed/_composable/fsdp/test_fully_shard_grad_scaler.py",
    "distributed/_composable/fsdp/test_fully_shard_init.py",
    "distributed/_composable/fsdp/test_fully_shard_mixed_precision.py",
    "distributed/_composable/fsdp/test_fully_shard_state.py",
    "distributed/_composable/fsdp/test_fully_shard_state_dict.py",
    "distributed/_composable/fsdp/test_fully_shard_training.py",
    "distributed/_composable/test_replicate.py",
    "distributed/*tensor/test_api.py",
    "distributed/*tensor/test_common_rules.py",
    "distributed/*tensor/test_convolution_ops.py",
    "distributed/*tensor/test_dtensor.py",
    "distributed/*tensor/test_embedding_ops.py",
    "distributed/*tensor/test_experimental_ops.py",
    "distributed/*tensor/test_init.py",
    "distributed/*tensor/test_math_ops.py",
    "distributed/*tensor/test_matrix_ops.py",
    "distributed/*tensor/test_optimizers.py",
    "distributed/*tensor/test_pointwise_ops.py",
    "distributed/*tensor/test_random_ops.py",
    "distributed/*tensor/test_redistribute.py",
    "distributed/*tensor/test_tensor_ops.py",
    "distributed/algorithms/ddp_comm_hooks/test_ddp_hooks.py",
    "distributed/algorithms/test_join.py",
    "distributed/optim/test_zero_redundancy_optimizer.py",
    "distributed/pipelining/test_schedule_multiproc.py",
    "distributed/pipelining/test_stage.py",
    "distributed/tensor/parallel/test_parallelize_api.py",
    "distributed/tensor/parallel/test_tp_examples.py",
    "distributed/tensor/parallel/test_tp_style.py",
    "distributed/test_c10d_object_collectives.py",
    "distributed/test_device_mesh.py",
    "distributed/test_functional_api.py",
)

RANKS = "distributed/"
"""The folder with tests of many processes or threads; ``FILES`` has those that are run of it."""
RANKS_LIMIT = 400
"""Seconds for a test there: its processes may have to start, and compile the same programs each."""

DETAILED = ("distributed/pipelining/test_stage.py",)
"""Files that expect checks which PyTorch makes with ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` only."""


def anywhere(name: str, device: str) -> str:
    """The name of a test without the device in it.

    >>> anywhere("test_sum_jax_float32", "jax")
    'test_sum_*_float32'
    """
    return re.sub(rf"_{device}(?=_|$)", "_*", name)
