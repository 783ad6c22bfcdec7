"""``torchvision`` for timm, where it is not installed: names that timm asks for at its import.

Its wheels are built for CUDA, and do not load beside a build for the CPU. What timm's models
use of it is a class that they look for among their layers; transforms and datasets stand empty.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from types import ModuleType
from typing import Any

from torch import nn


class _Interpolation(enum.Enum):
    """Ways to resize, by their names."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _Empty(ModuleType):
    """A module in which every name is a class of its own, which does nothing."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (nn.Module,), {})
        setattr(self, name, made)
        return made


def install() -> None:
    """Put the modules in place, unless torchvision is installed, or they are there."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    for name in (
        "torchvision",
        "torchvision.datasets",
        "torchvision.models",
        "torchvision.models.feature_extraction",
        "torchvision.ops",
        "torchvision.ops.misc",
        "torchvision.transforms",
        "torchvision.transforms.functional",
        "torchvision.utils",
    ):
        module = sys.modules[name] = _Empty(name)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    sys.modules["torchvision.transforms.functional"].InterpolationMode = _Interpolation
    sys.modules["torchvision.transforms"].InterpolationMode = _Interpolation


def take_away() -> None:
    """Leave no stand-in behind for libraries that look whether torchvision is there."""
    for name in [name for name, module in sys.modules.items() if type(module) is _Empty]:
        del sys.modules[name]
