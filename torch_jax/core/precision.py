"""The precision of float32 products at this moment.

The first of these that names a precision decides:

1. the innermost block of ``torch_jax.matmul_precision`` around the caller, by thread and task;
2. the settings ``matmul_precision`` and ``conv_precision``, which ``torch.backends.jax`` sets too;
3. PyTorch's switches: ``torch.set_float32_matmul_precision``, ``torch.backends``.

:func:`state` is part of all keys under which programs with products are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.core.scopes import Scopes, decorate


class Precisions(NamedTuple):
    """Precisions of matrix products and of convolutions, by PyTorch's names."""

    matmul: str
    conv: str


NAMES = ("highest", "high", "medium")
_scopes = Scopes("torch_jax matmul_precision")
_by_name = {name: Precisions(name, name) for name in NAMES}
_HIGHEST = _by_name["highest"]
_switch = pytorch.fp32_precision


class matmul_precision:
    """Set the precision of float32 products in a region: matmul, convolutions, attention.

    It comes before the settings and before PyTorch's switches, on this thread or asyncio task
    alone, in every executor; as a decorator, for a function.

    Args:
      precision: ``"highest"``, ``"high"`` or ``"medium"``, as of
        ``torch.set_float32_matmul_precision``.

    Raises:
      ValueError: for any other value.

    >>> import torch_jax
    >>> with torch_jax.matmul_precision("high"):
    ...     state().matmul
    'high'
    >>> state().matmul
    'highest'
    """

    def __init__(self, precision: str):
        if precision not in NAMES:
            raise ValueError(f"matmul_precision takes one of {NAMES}, not {precision!r}")
        self.precision = precision
        self._precisions = _by_name[precision]

    def __enter__(self) -> matmul_precision:
        _scopes.enter(self._precisions)
        return self

    def __exit__(self, *_exception: object) -> None:
        _scopes.leave(self._precisions)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Hold the precision while ``function`` runs; a generator or coroutine function too."""
        return decorate(self, function)


def state() -> Precisions:
    """Return the precisions that hold for the caller now."""
    if scoped := _scopes.values():
        return scoped[-1]
    (matmul, conv), switches = _settings(), _by_torch()
    if matmul or conv:
        return Precisions(matmul or switches.matmul, conv or switches.conv)
    return switches


def with_dtype() -> tuple[torch.dtype, Precisions]:
    """Return the beginning of the key of an operator with products; others take the dtype alone."""
    return torch.get_default_dtype(), state()


def with_switch() -> tuple[str | None, Precisions]:
    """Return for keys of code that can ask PyTorch its own answer (or None), and the state."""
    return _asked(), state()


@functools.cache
def _settings() -> list[str | None]:
    """Return the settings for matrix products and convolutions; None for those that are not set."""
    found = (config.get(f"{kind}_precision") for kind in ("matmul", "conv"))
    return [None if one == "torch" else one for one in found]


config.listeners.append(_settings.cache_clear)


def _asked() -> str | None:
    """Return ``torch.get_float32_matmul_precision()``; None: its old and new switches differ."""
    try:
        return pytorch.float32_matmul_precision()
    except RuntimeError:
        return None


def _by_torch() -> Precisions:
    """Return the precisions that PyTorch's switches ask for.

    Those of CUDA are taken for this device's. Convolutions are of TF32 only where both the switch
    of matrix products and that of convolutions allow it: PyTorch's default for cuDNN, which does,
    was never chosen for other devices.
    """
    old = _asked()
    if old == "highest":  # certain: PyTorch has no answer where a newer switch says otherwise
        return _HIGHEST
    matmul = matmul_by_switches(old, _switch("cuda", "matmul"), _switch("generic", "all"))
    allowed = matmul != "highest" and _switch("cuda", "conv") == "tf32"
    return Precisions(matmul, "high" if allowed else "highest")


def matmul_by_switches(old: str | None, cuda: str, everywhere: str) -> str:
    """Return the precision of matrix products by ``fp32_precision`` of CUDA, and of all backends.

    ``old`` is that of ``torch.set_float32_matmul_precision``, None where the newer ones contradict
    it.

    >>> matmul_by_switches("medium", "tf32", "none"), matmul_by_switches(None, "none", "bf16")
    ('medium', 'medium')
    """
    if cuda == "tf32":
        return old if old in ("high", "medium") else "high"
    if cuda == "ieee" or everywhere in ("ieee", "none"):
        return "highest"
    return "medium" if everywhere == "bf16" else "high"
