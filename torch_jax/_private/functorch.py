"""Private names of functorch, which is behind ``torch.func``, looked up as in ``pytorch.py``."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from torch_jax._private import pytorch
from torch_jax._private.pytorch import _functorch_level, _lookup

BATCHED = "FuncTorchBatched"  # the dispatch key of operators under vmap
# the keys of PyTorch's rules: random operators, and composites, have keys of their own
_RULES = (BATCHED, "FuncTorchVmapMode", "FuncTorchBatchedDecomposition")

# the keys that functorch excludes and includes while one level serves an operator
_LEVEL_KEYS = (
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
    "FuncTorchBatched",
    "FuncTorchVmapMode",
    "FuncTorchGradWrapper",
    "FuncTorchBatchedDecomposition",
    "Batched",
    "VmapMode",
    "PythonTLSSnapshot",
)
_AUTOGRAD_KEYS = (
    "AutogradFunctionality",
    "AutogradOther",
    "AutogradNestedTensor",
    "ADInplaceOrView",
)

transforms_active = _lookup("_C._are_functorch_transforms_active")
# asked of each call: a release without the older vmap is in none
_enter_older_vmap = getattr(torch._C, "_vmapmode_increment_nesting", lambda: 1)
_leave_older_vmap = getattr(torch._C, "_vmapmode_decrement_nesting", lambda: 0)
_without_batch, _as_batch = _lookup("_remove_batch_dim"), _lookup("_add_batch_dim")
_included = _lookup("_C._dispatch_tls_local_include_set")
_excluded = _lookup("_C._dispatch_tls_local_exclude_set")
_force = _lookup("_C._ForceDispatchKeyGuard")


def forward_mode() -> bool:
    """Return whether tensors may have tangents on this thread."""
    level: Any = _functorch_level()  # a graph's call of jvp enters one that forward_ad knows not
    return getattr(forward_ad, "_current_level", -1) >= 0 or (level and level.key().name == "Jvp")


def kernel_under_vmap(op: Any) -> Callable[..., Any]:
    """Return PyTorch's rule of an overload under vmap, or a loop, which take the keys first."""
    return torch.library.get_kernel(op, BATCHED).call_boxed


def has_rule(name: str) -> bool:
    """Return whether an overload has a rule for vmap, or gets one when vmap is first called."""
    if name.partition(".")[0].removeprefix("aten::") in _loaded_later():
        return True
    return any(pytorch.has_kernel(name, key) for key in _RULES)


@functools.cache
def _loaded_later() -> frozenset[str]:
    """Return operators whose rules are decompositions, loaded by the first call of vmap."""
    name = "lazy_load_decompositions"
    load = getattr(importlib.import_module("torch._functorch.predispatch"), name, None)
    return frozenset(getattr(getattr(load, "__code__", None), "co_names", ()))


def current_level() -> Any:
    """Return the transform that is being served."""
    module = importlib.import_module("torch._functorch.pyfunctorch")
    return module.retrieve_current_functorch_interpreter()


def unwrapped(values: Any, level: int) -> tuple[Any, Any]:
    """Return values without the batch of a level, and the dimension of each batch (or None)."""
    module = importlib.import_module("torch._functorch.autograd_function")
    return module.unwrap_batched(values, level)


def wrapped(value: torch.Tensor, level: int) -> torch.Tensor:
    """Return a tensor whose first dimension is the batch of a level."""
    return importlib.import_module("torch._C._functorch")._add_batch_dim(value, 0, level)


def for_each_sample(function: Callable[[Any], list[Any]], values: Any) -> list[Any]:
    """Call with each sample of a batch of gradients (``is_grads_batched``), and stack the results.

    PyTorch makes such a batch by its older vmap, whose tensors have no memory.
    """
    level = _enter_older_vmap() - 1
    _leave_older_vmap()
    if not (level and values):
        return function(values)

    def rows(value: Any, size: int) -> Any:  # a tensor outside of the batch is all of them
        is_tensor = isinstance(value, torch.Tensor)
        return _without_batch(value, level, size, 0) if is_tensor else [value] * size

    size = max(len(rows(value, 1)) for value in values)
    samples = zip(*(rows(value, size) for value in values), strict=True)
    return [
        _as_batch(torch.stack(of), 0, level) if isinstance(of[0], torch.Tensor) else of[0]
        for of in zip(*map(function, map(list, samples)), strict=True)
    ]


@functools.cache
def _keys(names: tuple[str, ...]) -> Any:
    found = [getattr(torch._C.DispatchKey, name, None) for name in names]
    keys = [torch._C.DispatchKeySet(key) for key in found if key is not None]
    return functools.reduce(lambda one, other: one | other, keys)


@contextlib.contextmanager
def below(level: Any) -> Iterator[None]:
    """Run the block's calls as if outside of the level that a kernel serves.

    The dispatcher excludes keys while it serves a level, which calls of functions, as opposed to
    operators, would never get rid of.
    """
    excluded = _excluded() - _keys(_LEVEL_KEYS)
    if not torch.is_inference_mode_enabled():
        excluded = excluded - _keys(_AUTOGRAD_KEYS)
    included = (_included() - _keys(_LEVEL_KEYS)) | _keys(_LEVEL_KEYS[:2])
    with _force(included, excluded), level.lower():
        yield


def tangents_known() -> Any:
    """Return a context in which tensors may be printed, also while they may have tangents.

    PyTorch's Python prints the arguments of an overload that does not fit, for an error that is
    dropped where another one fits. To print is to read tangents, which only autograd knows.
    """
    if not forward_mode():
        return contextlib.nullcontext()
    return _force(_included(), _excluded() - _keys(_AUTOGRAD_KEYS))
