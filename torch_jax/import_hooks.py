"""Help for libraries that refuse a device they do not know, given when they are imported.

safetensors checks device names in Rust and knows no ``jax``: there a file is read on the CPU and
its tensors are moved.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch_jax import _internals


def install() -> None:
    """Patch the libraries that are imported already, and the others when they are."""
    for name, patch in _PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport())


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs a patch right after its module's own code."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in _PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _PATCHES[name](module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _patch_safetensors(module: ModuleType) -> None:
    """``safe_open(..., device="jax")``: opened on the CPU, each tensor moved as it is read."""
    original = module.safe_open

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
        if str(device).partition(":")[0] != _internals.DEVICE_TYPE:
            return original(filename, framework, device=device, **kwargs)
        return _OnJax(original(filename, framework, device="cpu", **kwargs))

    module.safe_open = safe_open  # type: ignore[attr-defined]


class _OnJax:
    """An open safetensors file (or a slice of one) whose tensors come out on device jax."""

    def __init__(self, inner: Any):
        self._inner = inner

    def __enter__(self) -> _OnJax:
        self._inner.__enter__()
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._inner.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __getitem__(self, index: Any) -> Any:
        return self._inner[index].to(_internals.DEVICE_TYPE)

    def get_tensor(self, name: str) -> Any:
        """One tensor of the file."""
        return self._inner.get_tensor(name).to(_internals.DEVICE_TYPE)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors of the file, by name."""
        tensors = self._inner.get_tensors()
        return {name: tensor.to(_internals.DEVICE_TYPE) for name, tensor in tensors.items()}

    def get_slice(self, name: str) -> _OnJax:
        """A tensor of the file that is read when it is indexed."""
        return _OnJax(self._inner.get_slice(name))


_PATCHES: dict[str, Callable[[ModuleType], None]] = {"safetensors.torch": _patch_safetensors}
