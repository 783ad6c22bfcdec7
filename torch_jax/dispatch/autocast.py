"""``torch.autocast("jax")``: the dtypes of operators, and the cache of cast weights.

:data:`POLICIES` is PyTorch's table for CUDA. A kernel on the dispatch key ``AutocastPrivateUse1``
casts an operator's arguments by its policy and runs the operator with the key excluded, so that its
parts are left alone. The key is above autograd: the casts are part of the graph, and gradients
reach a float32 weight in float32. All other operators fall through
(:mod:`torch_jax.startup.register`), and outside a region no operator comes this way.

Semantics: https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torch_jax._private import jax_core, pytorch
from torch_jax.dispatch import transformer_fast_paths  # noqa: F401, enters kernels
from torch_jax.dispatch.storage_kernels import KERNELS
from torch_jax.eager import variants
from torch_jax.memory.storage import held_by, memory_if_any, tensors_in

# Operators by policy, as in ATen's autocast_mode.h. Others run in the dtype they get.
POLICIES = {
    "lower_precision": """
        _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
        conv_transpose2d.input conv_transpose3d.input convolution
        addbmm addmm addmv addr baddbmm bmm chain_matmul einsum linalg_multi_dot linalg_vecdot
        linear matmul mm mv prelu
        _scaled_dot_product_flash_attention scaled_dot_product_attention
        _thnn_fused_gru_cell _thnn_fused_lstm_cell gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell
    """,
    "float32": """
        acos asin cosh erfinv exp expm1 log log10 log1p log2 pow.Scalar pow.Tensor_Scalar
        pow.Tensor_Tensor reciprocal rsqrt sinh softplus tan
        group_norm layer_norm native_layer_norm rms_norm
        cdist cosine_similarity dist frobenius_norm.dim logsumexp nuclear_norm nuclear_norm.dim
        pdist renorm
        binary_cross_entropy_with_logits cosine_embedding_loss hinge_embedding_loss huber_loss
        kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
        nll_loss nll_loss2d poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
        _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_bicubic2d upsample_bilinear2d
        upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
        upsample_trilinear3d
    """,
    "float32_output": """
        cumprod cumsum linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm
        log_softmax.int prod prod.dim_int softmax.int sum sum.dim_IntList
    """,
    "float32_overload": "norm.Scalar norm.ScalarOpt_dim",
    "widest": """
        addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot
    """,
    "banned": "binary_cross_entropy",
    # modules skip these under autocast, but look whether it is on for CUDA only
    "composed": "_native_multi_head_attention _transformer_encoder_layer_fwd",
}

Kernel = Callable[..., Any]


def install() -> Any:
    """Register a kernel for every operator of the table; return the library that keeps them."""
    library = torch.library.Library("aten", "IMPL")
    for policy, names in POLICIES.items():
        for name in names.split():
            op = variants.overload(name)
            if op is not None:  # releases differ in their operators
                library.impl(op, _MAKERS[policy](op), "AutocastPrivateUse1")
    return library


def casting(dtype_of: Callable[[Any], torch.dtype]) -> Callable[[Any], Kernel]:
    """Return the maker of kernels that cast, to a dtype that depends on the arguments."""

    def make(op: Any) -> Kernel:
        def call(*args: Any, **kwargs: Any) -> Any:
            with pytorch.no_autocast():
                dtype = dtype_of((args, kwargs))
                return op(*cast(args, dtype), **{n: cast(v, dtype) for n, v in kwargs.items()})

        return call

    return make


def float32_output(op: Any) -> Kernel:
    """Ask an operator that takes ``dtype=`` for float32, where the caller names no dtype."""
    position = [argument.name for argument in op._schema.arguments].index("dtype")

    def call(*args: Any, **kwargs: Any) -> Any:
        asked = args[position] if len(args) > position else kwargs.get("dtype")
        with pytorch.no_autocast():
            if asked is None and is_eligible(args[0]):
                return op(*args[:position], **(kwargs | {"dtype": torch.float32}))
            return op(*args, **kwargs)

    return call


def banned(op: Any) -> Kernel:
    """Refuse an operator whose gradient overflows in float16."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"torch.nn.functional.{op._schema.name.removeprefix('aten::')} and torch.nn.BCELoss "
            "are unsafe to autocast: the gradient of a sigmoid before them overflows. Use "
            "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which take what is before "
            "the sigmoid and are safe, or leave autocast for the loss."
        )

    return call


def is_eligible(tensor: torch.Tensor) -> bool:
    """Return whether autocast may cast a tensor: floating, of this device, not float64."""
    return (
        tensor.is_floating_point()
        and tensor.dtype is not torch.float64
        and tensor.device.type == pytorch.DEVICE_TYPE
    )


def _region_dtype(_values: Any) -> torch.dtype:
    return torch.get_autocast_dtype(pytorch.DEVICE_TYPE)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Return ``value`` with eligible tensors in it cast, casts of weights out of the cache."""
    if isinstance(value, torch.Tensor):
        if value.dtype is dtype or not is_eligible(value):
            return value
        return _cast_weight(value, dtype) if _is_weight(value, dtype) else value.to(dtype)
    return [cast(one, dtype) for one in value] if isinstance(value, list | tuple) else value


def _widest(values: Any) -> torch.dtype:
    """Return float32 if one argument is of it, else the dtype of the region."""
    result = region = _region_dtype(values)
    for tensor in tensors_in(values):
        if not is_eligible(tensor):
            continue
        if tensor.dtype is torch.float32:
            result = torch.float32
        elif result is not torch.float32 and tensor.dtype is not region:
            raise RuntimeError(
                f"a {tensor.dtype} tensor in an autocast region of {region}: "
                "cast it to the region's dtype or to float32"
            )
    return result


_MAKERS: dict[str, Callable[[Any], Kernel]] = {
    "lower_precision": casting(_region_dtype),
    "float32": casting(lambda _values: torch.float32),
    "float32_output": float32_output,
    "float32_overload": casting(lambda _values: torch.float32),  # as their overloads with a dtype
    "widest": casting(_widest),
    "banned": banned,
    "composed": lambda op: KERNELS[variants.table_name(op)],  # operators have their own policies
}


class _Cast(NamedTuple):
    """A cast weight, and the weight with its version at the time of the cast."""

    result: torch.Tensor
    weight: torch.Tensor  # kept alive, for its id is the key and must not be another tensor's
    version: int
    memory: weakref.ref


class _Casts(threading.local):
    def __init__(self) -> None:
        self.found: dict[tuple, _Cast] = {}


_casts = _Casts()


def clear_cache() -> None:
    """Forget this thread's cast weights; called when its outermost autocast region is left."""
    _casts.found.clear()


def _is_weight(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.dtype is torch.float32
        and dtype is not torch.float32
        and not tensor._is_view()
        and not tensor.is_inference()
        and torch.is_autocast_cache_enabled()
    )


def _cast_weight(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a weight's cast, made once in a region; no trace keeps one, which would outlive it."""
    if memory_if_any(weight) is None or not jax_core.is_outside_traces():
        return weight.to(dtype)
    memory = held_by(weight)  # an array: a write puts another in its place
    key = (id(weight), dtype, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    found = _casts.found.get(key)
    if found and found.version == weight._version and found.memory() is memory:
        return found.result
    result = weight.to(dtype)
    _casts.found[key] = _Cast(result, weight, weight._version, weakref.ref(memory))
    return result
