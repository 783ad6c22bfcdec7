"""Patches of modules that are imported later, or never: each is applied right after its import."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from types import ModuleType
from typing import Any

from torch_jax.core import patching

# The file of a module's patches. It is imported with that module, so that `import torch`
# does not pay for libraries that a program does not use.
_PATCHED = {
    ("checkpoint", "torch.distributed.checkpoint."): "default_planner filesystem hf_storage",
    ("distributed", "torch.distributed."): "device_mesh distributed_c10d tensor",
    ("dynamo", "torch._dynamo"): "",
    ("dynamo", "torch._dynamo."): "device_interface trace_rules variables.builder",
    ("higher_order", "torch._higher_order_ops."): "cond map scan utils while_loop",
    ("higher_order", "torch."): "nn.attention.flex_attention utils.checkpoint",
    ("nested", "torch.nested._internal."): "ops",
    ("safetensors", "safetensors"): "",
    ("transformers", "transformers."): "integrations.moe utils.import_utils",
}


_files = {
    f"{package}{name}": [f"torch_jax.patches.{file}"]
    for (file, package), names in _PATCHED.items()
    for name in names.split() or ("",)
}


def install() -> None:
    """Patch the modules that are imported already, and the others when they are; called once."""
    for name in _files:
        if name in sys.modules:
            _patch(name)
    sys.meta_path.insert(0, _AfterImport())


def also(files: dict[str, str]) -> None:
    """Add patches of other rooms: for each module of a library, the file with its patches.

    Releases of such a library come and go: if a file does not understand one, a warning says so
    and the module stays unpatched.
    """
    for name, file in files.items():
        _files.setdefault(name, []).append(file)
        if name in sys.modules:
            _patch(name)


def _patch(name: str) -> None:
    for file in _files[name]:
        try:
            importlib.import_module(file)
            patching.apply(name)
        except Exception as error:
            if not file.startswith("torch_jax.integrations."):
                raise
            warnings.warn(
                f"torch_jax does not understand this release of {name.partition('.')[0]}, and "
                f"leaves {name} unchanged: {error!r}",
                stacklevel=2,
            )


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs a patch right after its module's own code."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in _files:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _patch(name)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
