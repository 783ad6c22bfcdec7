"""``torch.backends.jax``: the precision of float32 products, as in ``torch.backends.cuda``.

Both switches are the settings ``matmul_precision`` and ``conv_precision`` in other words:
``"ieee"`` is ``"highest"``, ``"tf32"`` ``"high"``, ``"bf16"`` ``"medium"``, and ``"none"``
``"torch"``: PyTorch's own switches are followed.

>>> import torch
>>> torch.backends.jax.matmul.fp32_precision = "tf32"
>>> torch.backends.jax.matmul.allow_tf32, torch.backends.jax.conv.fp32_precision
(True, 'none')
>>> torch.backends.jax.matmul.fp32_precision = "none"
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch

from torch_jax import config

_SETTINGS = {"none": "torch", "ieee": "highest", "tf32": "high", "bf16": "medium"}
_NAMES = {setting: name for name, setting in _SETTINGS.items()}


class Products:
    """The precision of one kind of products, by its setting."""

    def __init__(self, setting: str):
        self._setting = setting

    @property
    def fp32_precision(self) -> str:
        """Return ``"none"``, ``"ieee"``, ``"tf32"`` or ``"bf16"``."""
        return _NAMES[config.get(self._setting)]

    @fp32_precision.setter
    def fp32_precision(self, value: str) -> None:
        if value not in _SETTINGS:
            raise RuntimeError(
                f"fp32_precision of torch.backends.jax is one of {tuple(_SETTINGS)}, not {value!r}"
            )
        config.set(self._setting, _SETTINGS[value])

    @property
    def allow_tf32(self) -> bool:
        """Return whether these switches allow less than float32, PyTorch's own aside."""
        return self.fp32_precision in ("tf32", "bf16")

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        self.fp32_precision = "tf32" if value else "ieee"


class _Backend(ModuleType):
    """The module ``torch.backends.jax``."""

    matmul = Products("matmul_precision")
    conv = Products("conv_precision")

    @property
    def fp32_precision(self) -> str:
        """Return the precision of both kinds; ``"none"`` where they differ."""
        kinds = {self.matmul.fp32_precision, self.conv.fp32_precision}
        return kinds.pop() if len(kinds) == 1 else "none"

    @fp32_precision.setter
    def fp32_precision(self, value: str) -> None:
        self.matmul.fp32_precision = self.conv.fp32_precision = value


def install() -> None:
    """Make ``torch.backends.jax`` importable."""
    module = _Backend("torch.backends.jax", __doc__)
    sys.modules[module.__name__] = module
    torch.backends.jax = module  # type: ignore[attr-defined]
