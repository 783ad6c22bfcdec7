"""Attention by a kernel of the platform: cuDNN's on GPUs, splash attention of Pallas' on TPUs.

A kernel is a function of query, key, value and bias, in four dims, that returns the result and
log-sum-exp, None without ``sums``. Its gradient is JAX's: the kernel's own.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from torch_jax import target

_INTERPRETED = False  # Pallas' kernels in the interpreter, which tests switch on


Kernel = Callable[..., tuple[jax.Array, jax.Array]]


def cudnn(query, key, value, bias, is_causal: bool, scale: float, sums=True, by: str = "cudnn"):
    """Run cuDNN's fused attention, or the same call ``by="xla"``.

    It knows no -inf: scores of hidden keys become a large negative number, and rows that see
    nothing become 0 afterwards.
    """
    sees = None
    if bias is not None:
        bias, sees = _finite(bias, query, key)
    attend: Any = jax.nn.dot_product_attention
    layout = [x.swapaxes(1, 2) for x in (query, key, value)]
    options = {"bias": bias, "scale": scale, "is_causal": is_causal, "implementation": by}
    if not sums:
        return _seen(sees, attend(*layout, **options).swapaxes(1, 2), 0), None
    out, of_rows = attend(*layout, **options, return_residual=True)
    out, of_rows = out.swapaxes(1, 2), of_rows.swapaxes(1, 2).astype(jnp.float32)
    return _seen(sees, out, 0), _seen(sees, of_rows, -jnp.inf)


def _seen(sees: jax.Array | None, x: jax.Array, otherwise: float) -> jax.Array:
    """Return ``x``, or ``otherwise`` in rows that see nothing."""
    if sees is None:
        return x
    return jnp.where(sees.reshape(*sees.shape, *(1 for _ in range(x.ndim - 3))), x, otherwise)


def _finite(bias: jax.Array, query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a mask as finite numbers in the query's dtype, and the rows that see anything."""
    lowest = 0.5 * float(jnp.finfo(query.dtype).min)
    if bias.dtype == jnp.bool_:
        bias = jnp.where(bias, 0.0, -jnp.inf)
    sees = (bias > -jnp.inf).any(-1)
    finite = jnp.maximum(bias, lowest).astype(query.dtype)
    return jnp.broadcast_to(finite, (*bias.shape[:2], query.shape[2], key.shape[2])), sees


def splash(query, key, value, bias, is_causal: bool, scale: float, sums=True):
    """Run splash attention, which takes no bias: blocks hidden by a causal mask are skipped."""
    heads, shape = query.shape[1], (query.shape[2], key.shape[2])
    scaled = (query * scale).astype(query.dtype)
    with jax.enable_x64(False):  # its indices are int32s
        found = jax.vmap(_splash_kernel(heads, shape, is_causal, sums))(scaled, key, value)
    return (found[0], found[1][0]) if sums else (found, None)


def _splash_kernel(heads: int, shape: tuple[int, int], is_causal: bool, residuals: bool) -> Any:
    folder = "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention"
    kernels, masks = (importlib.import_module(f"{folder}_{name}") for name in ("kernel", "mask"))
    mask = masks.CausalMask(shape) if is_causal else masks.FullMask(shape)
    block = max(size for size in (128, 256, 512) if not (shape[0] % size or shape[1] % size))
    sizes = kernels.BlockSizes(
        **dict.fromkeys(
            "block_q block_kv block_kv_compute block_q_dkv block_kv_dkv block_kv_dkv_compute "
            "block_q_dq block_kv_dq".split(),
            block,
        )
    )
    return kernels.make_splash_mha(
        mask=masks.MultiHeadMask([mask for _ in range(heads)]),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        save_residuals=residuals,
        interpret=_INTERPRETED,
    )


# The form's name, the name of its platform at lowering, and the function.
KERNELS: dict[str, tuple[str, Kernel]] = {"cudnn": ("cuda", cudnn), "splash": ("tpu", splash)}


@functools.cache
def splash_is_there() -> bool:
    """Return whether this JAX has splash attention under the name used here."""
    try:
        _splash_kernel(1, (128, 128), True, False)
    except Exception:  # experimental: its names and arguments change without notice
        return False
    return True


def gradients(kernel: Kernel, operands: tuple, bias: Any, is_causal: bool, scale: float, grad):
    """Return gradients of query, key and value."""

    def out(*operands: Any) -> jax.Array:
        return kernel(*operands, bias, is_causal, scale, sums=False)[0]

    with jax.enable_x64(False):
        result, transpose = jax.vjp(out, *operands)
        return transpose(grad.astype(result.dtype))


def capability() -> tuple[int, int]:
    """Return the compute capability of the first GPU; (0, 0) where it is none of NVIDIA's."""
    found = str(getattr(target.devices()[0], "compute_capability", ""))
    major, _, minor = found.partition(".")
    return (int(major), int(minor or 0)) if major.isdigit() else (0, 0)
