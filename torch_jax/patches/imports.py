"""Help for modules that do not know the device, given when they are imported.

- safetensors checks device names in Rust: there a file is read on the CPU and its tensors moved.
- PyTorch's control flow operators get kernels for the device, ``control_flow.py``.
- flex_attention has a list of devices that it takes.
- Dynamo asks about a device through an interface, ``dynamo_device.py``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import pkgutil
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core import dynamo_constants
from torch_jax.core.active import ACTIVE
from torch_jax.memory import generators


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
        if str(device).partition(":")[0] != pytorch.DEVICE_TYPE:
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
        return self._inner[index].to(pytorch.DEVICE_TYPE)

    def get_tensor(self, name: str) -> Any:
        """One tensor of the file."""
        return self._inner.get_tensor(name).to(pytorch.DEVICE_TYPE)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors of the file, by name."""
        tensors = self._inner.get_tensors()
        return {name: tensor.to(pytorch.DEVICE_TYPE) for name, tensor in tensors.items()}

    def get_slice(self, name: str) -> _OnJax:
        """A tensor of the file that is read when it is indexed."""
        return _OnJax(self._inner.get_slice(name))


def _control_flow(operator: str, kernel: str) -> Callable[[ModuleType], None]:
    """A patch that gives a higher-order operator the kernel of that name."""

    def patch(module: ModuleType) -> None:
        op = getattr(module, operator, None)
        dense = pytorch.dense_kernel(op)
        if dense is None:
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            from torch_jax.dispatch import control_flow

            return getattr(control_flow, kernel)(dense, *args, **kwargs)

        pytorch.add_kernel(op, call)

    return patch


def _patch_flex_attention(module: ModuleType) -> None:
    """Let the device through; PyTorch's own mathematics of it runs on any."""
    original = getattr(module, "_validate_device", None)

    def validate(query: Any, key: Any, value: Any) -> None:
        if query.device.type != pytorch.DEVICE_TYPE and original is not None:
            original(query, key, value)

    module._validate_device = validate  # type: ignore[attr-defined]


def _patch_compiled_control_flow(module: ModuleType) -> None:
    """In a function under torch_jax.jit, Dynamo must not see that operators are watched."""
    original = getattr(module, "_hop_compile_and_call", None)
    if original is None:
        return

    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if ACTIVE.tracer is None:
            return original(fn, args, kwargs)
        from torch_jax.dispatch import control_flow

        return control_flow.compile_and_call(fn, args, kwargs or {})

    module._hop_compile_and_call = call  # type: ignore[attr-defined]


def _patch_transformers(module: ModuleType) -> None:
    """Its models skip looks at values where they are told that they are being traced."""
    original = getattr(module, "is_jax_jitting", None)
    if original is None:
        return

    def is_jax_jitting(x: Any) -> bool:
        if getattr(getattr(x, "device", None), "type", "") != pytorch.DEVICE_TYPE:
            return original(x)
        if torch.compiler.is_dynamo_compiling():
            return True
        from torch_jax.core import tracers
        from torch_jax.memory import storage

        return tracers.is_traced(storage.memory_of(x))

    module.is_jax_jitting = is_jax_jitting  # type: ignore[attr-defined]


def _serve_experts(_module: ModuleType) -> None:
    """Its operators have kernels for every device, which would come before the table."""
    library = torch.library.Library("transformers", "IMPL")
    for name in ("grouped_mm_fallback", "grouped_mm_fallback_backward"):
        packet = getattr(torch.ops.transformers, name, None)
        if packet is not None:
            library.impl(name, functools.partial(_by_ladder, packet.default), "PrivateUse1")
    _libraries.append(library)


_libraries: list[torch.library.Library] = []  # a registration lives as long as these


def _by_ladder(op: Any, *args: Any, **kwargs: Any) -> Any:
    from torch_jax.dispatch import ladder

    return ladder.fallback(op, *args, **kwargs)


def _patch_checkpoint(module: ModuleType) -> None:
    """In a compiled function, what is computed again is kept apart from the first time."""
    original = module.checkpoint

    @functools.wraps(original)
    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        if ACTIVE.tracer is not None:
            from torch_jax.capture.training import checkpoint as remat

            function = remat.again(function)
        return original(function, *args, **kwargs)

    module.checkpoint = checkpoint  # type: ignore[attr-defined]


def _add_device_interface(module: ModuleType) -> None:
    """Tell Dynamo of the device."""
    from torch_jax.graphs import device_interface

    device_interface.register(module)


# What stands in the place of PyTorch's own callables: Dynamo looks through these to the callables.
_SEEN_THROUGH = frozenset(
    (
        "torch_jax.config",
        "torch_jax.environment.callables",
        "torch_jax.environment.environment",
        "torch_jax.environment.redirects",
        "torch_jax.environment.scopes",
        "torch_jax.patches.imports",
    )
)


def _hide_from_dynamo(module: ModuleType) -> None:
    """After a graph break Dynamo compiles what is called next: kernels are no such thing."""
    add = getattr(module, "add", None)
    if add is None:
        return
    for name in _hidden(sys.modules["torch_jax"]):
        add(name)
    add("jax")


def _hidden(package: ModuleType) -> Iterator[str]:
    """Modules of a package that Dynamo must not see into; the folder, where all of it is meant."""
    for part in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if part.ispkg and any(name.startswith(f"{part.name}.") for name in _SEEN_THROUGH):
            yield from _hidden(importlib.import_module(part.name))
        elif part.name not in _SEEN_THROUGH:
            yield part.name


def _patch_builder(module: ModuleType) -> None:
    """Generators break a graph, as PyTorch's own do; Dynamo asks for their exact type."""
    builder: Any = getattr(module, "VariableBuilder", None)
    original = getattr(builder, "_wrap", None)
    if original is None or not hasattr(builder, "wrap_user_defined"):
        return

    def _wrap(self: Any, value: Any) -> Any:
        if isinstance(value, generators.JaxGenerator):
            return self.wrap_user_defined(value)
        return original(self, value)

    builder._wrap = _wrap


def _tell_dynamo(_module: ModuleType) -> None:
    """Make known what it may take for a constant."""
    dynamo_constants.tell_dynamo()


_PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "safetensors": _patch_safetensors,
    "safetensors.torch": _patch_safetensors,
    "torch._dynamo": _tell_dynamo,
    "torch._dynamo.variables.builder": _patch_builder,
    "torch._dynamo.trace_rules": _hide_from_dynamo,
    "torch._dynamo.device_interface": _add_device_interface,
    "torch._higher_order_ops.cond": _control_flow("cond_op", "cond"),
    "torch._higher_order_ops.map": _control_flow("map_impl", "map_"),
    "torch._higher_order_ops.scan": _control_flow("scan_op", "scan"),
    "torch._higher_order_ops.while_loop": _control_flow("while_loop_op", "while_loop"),
    "torch._higher_order_ops.utils": _patch_compiled_control_flow,
    "torch.utils.checkpoint": _patch_checkpoint,
    "transformers.utils.import_utils": _patch_transformers,
    "transformers.integrations.moe": _serve_experts,
    "torch.nn.attention.flex_attention": _patch_flex_attention,
}
