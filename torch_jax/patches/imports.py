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
    "safetensors": "safetensors",
    "torch._dynamo": "dynamo",
    "torch._dynamo.device_interface": "dynamo",
    "torch._dynamo.trace_rules": "dynamo",
    "torch._dynamo.variables.builder": "dynamo",
    "torch._higher_order_ops.cond": "higher_order",
    "torch._higher_order_ops.map": "higher_order",
    "torch._higher_order_ops.scan": "higher_order",
    "torch._higher_order_ops.utils": "higher_order",
    "torch._higher_order_ops.while_loop": "higher_order",
    "torch.distributed.checkpoint.default_planner": "checkpoint",
    "torch.distributed.checkpoint.filesystem": "checkpoint",
    "torch.distributed.checkpoint.hf_storage": "checkpoint",
    "torch.distributed.device_mesh": "distributed",
    "torch.distributed.distributed_c10d": "distributed",
    "torch.distributed.tensor": "distributed",
    "torch.nested._internal.ops": "nested",
    "torch.nn.attention.flex_attention": "higher_order",
    "torch.utils.checkpoint": "higher_order",
    "transformers.integrations.moe": "transformers",
    "transformers.utils.import_utils": "transformers",
}


_files = {name: [f"torch_jax.patches.{file}"] for name, file in _PATCHED.items()}


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
