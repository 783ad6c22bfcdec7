"""``import torch_xla`` and ``import torchax`` find the modules of this folder.

One finder serves both packages, by the tables of :mod:`torch_jax.compat.tables`: a module is made
of the public names of a file of this folder, its submodules are imported on demand, and the error
for a name that is not carried over names a replacement.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from torch_jax.compat.tables import MODULES, NOT_CARRIED
from torch_jax.environment import redirects, regions


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of a bridge by its name, and returns that of this folder."""

    def __init__(self) -> None:
        self.packages: set[str] = set()  # the bridges that it finds

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_ours = fullname.partition(".")[0] in self.packages
        if not (is_ours and (fullname in MODULES or refusal(fullname))):
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name not in MODULES:
            raise ModuleNotFoundError(refusal(name), name=name)
        module.__getattr__ = lambda attribute: _missing(name, attribute)  # type: ignore[method-assign]
        if MODULES[name]:
            source = importlib.import_module(f"torch_jax.compat.{MODULES[name]}")
            vars(module).update(public_names(source))


def public_names(module: ModuleType) -> dict[str, Any]:
    """Return the names that a module of a bridge has from a file of this folder."""
    return {
        name: value
        for name, value in vars(module).items()
        if name in ("__doc__", "__version__")
        or not (name.startswith("_") or isinstance(value, ModuleType))
    }


def _missing(module: str, attribute: str) -> Any:
    """Return a submodule for a name that a module does not hold, or raise."""
    name = f"{module}.{attribute}"
    if name in MODULES:
        return importlib.import_module(name)
    raise AttributeError(refusal(name) or f"module {module!r} has no attribute {attribute!r}")


def refusal(name: str) -> str | None:
    """Return the refusal of a bridge's name that is not carried over; None for other names."""
    path, _, last = name.rpartition(".")
    if name in NOT_CARRIED:
        return f"{name} is not carried over by torch_jax: {NOT_CARRIED[name]}"
    while path and not last.startswith("__"):
        if f"{path}.*" in NOT_CARRIED:
            return f"{name} is not carried over by torch_jax: {NOT_CARRIED[f'{path}.*']}"
        path = path.rpartition(".")[0]
    return None


_BRIDGES = tuple(name for name in MODULES if "." not in name)
_FINDER = _Finder()


def install(*packages: str) -> None:
    """Let ``import torch_xla`` and ``import torchax`` find the modules of this package.

    With ``torch_xla``, ``"xla"`` means ``"jax"`` in all of PyTorch's functions with a device.

    Installed bridges are found first. A script calls it above its imports, as the processes that
    it starts run these again.

    Args:
      packages: ``"torch_xla"``, ``"torchax"``; both where none is named. Libraries that have a way
        of their own for PyTorch/XLA look for it, and find it after this.
    """
    if unknown := set(packages) - set(_BRIDGES):
        raise ValueError(f"the bridges are {', '.join(_BRIDGES)}, not {', '.join(sorted(unknown))}")
    _FINDER.packages.update(packages or _BRIDGES)
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
    if "torch_xla" in _FINDER.packages:
        redirects.install()
        regions.take_xla(True)
