"""``import torch_xla`` finds the modules of this folder, where PyTorch/XLA is not installed."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_MODULES = {
    "torch_xla": "torch_xla",
    "torch_xla.core.xla_model": "xla_model",
    "torch_xla.debug.metrics": "metrics",
    "torch_xla.distributed.parallel_loader": "parallel_loader",
    "torch_xla.distributed.xla_backend": "xla_backend",
    "torch_xla.distributed.xla_multiprocessing": "xla_multiprocessing",
    "torch_xla.runtime": "runtime",
    "torch_xla.utils.utils": "utils",
}
_FOLDERS = {name.rpartition(".")[0] for name in _MODULES} - {""}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of PyTorch/XLA by its name, and gives the one of this folder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MODULES and fullname not in _FOLDERS:
            return None
        is_folder = fullname in _FOLDERS
        return importlib.util.spec_from_loader(fullname, self, is_package=is_folder)

    def exec_module(self, module: ModuleType) -> None:
        own = _MODULES.get(module.__name__)
        if own is None:
            return
        source = importlib.import_module(f"torch_jax.compat.{own}")
        for name, value in vars(source).items():
            if name in ("__doc__", "__version__") or _is_public(name, value):
                setattr(module, name, value)
        if module.__name__ == "torch_xla":  # which imports its modules itself
            for name in _MODULES:
                importlib.import_module(name)


def _is_public(name: str, value: Any) -> bool:
    return not name.startswith("_") and not isinstance(value, ModuleType)


def install() -> None:
    """Have ``import torch_xla`` find the names that this package has of it.

    PyTorch/XLA itself goes first where it is installed. A script calls this above its imports, as
    the processes that it starts run these again.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
