"""PyTorch dtypes and their JAX twins.

>>> import torch
>>> to_jax(torch.bfloat16)
dtype(bfloat16)
>>> to_torch(to_jax(torch.int64))
torch.int64
"""

from __future__ import annotations

import ml_dtypes  # noqa: F401, names dtypes to NumPy
import numpy as np
import torch

_NAMES = """
    bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64
    complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu
"""

TO_JAX: dict[torch.dtype, np.dtype] = {
    getattr(torch, name): np.dtype(name) for name in _NAMES.split() if hasattr(torch, name)
}
TO_TORCH: dict[np.dtype, torch.dtype] = {twin: dtype for dtype, twin in TO_JAX.items()}
FLOATS = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))


def to_jax(dtype: torch.dtype) -> np.dtype:
    """Return the JAX dtype of a torch dtype; ``TypeError`` if there is none (complex32 …)."""
    try:
        return TO_JAX[dtype]
    except KeyError:
        raise TypeError(f"{dtype} is not supported on device 'jax'") from None


def to_torch(dtype: np.dtype) -> torch.dtype:
    """Return the torch dtype of a JAX dtype; ``TypeError`` if torch has none (int4, float4 …)."""
    try:
        return TO_TORCH[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"JAX dtype {dtype} has no torch twin") from None


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a CPU tensor as a NumPy array of its memory, bfloat16 and float8 included."""
    twin = to_jax(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if twin.isbuiltin == 1:
        return tensor.numpy()
    # dtypes that NumPy knows only through ml_dtypes cross as integers of their size
    return tensor.view(getattr(torch, f"uint{8 * twin.itemsize}")).numpy().view(twin)
