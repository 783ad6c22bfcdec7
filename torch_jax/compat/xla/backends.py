"""``torch_xla.backends``: the precision of products."""

from __future__ import annotations

from torch_jax import config

_OWN = {"default": "medium", "high": "high", "highest": "highest"}


def set_mat_mul_precision(precision: str) -> None:
    """Set the precision to ``"default"``, ``"high"`` or ``"highest"``."""
    if precision not in _OWN:
        raise ValueError(f"precision is one of {sorted(_OWN)}, not {precision!r}")
    config.set("matmul_precision", _OWN[precision])


def get_mat_mul_precision() -> str:
    """Return the precision; ``"default"`` where PyTorch's switches decide."""
    found = config.get("matmul_precision")
    return next((name for name, value in _OWN.items() if value == found), "default")
