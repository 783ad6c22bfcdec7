"""What ``torch.compile`` and ``torch.autocast`` do that a device has no hook for."""

from __future__ import annotations

import functools
from typing import Any

from torch_jax.core.patching import AT_FIRST_USE, patch
from torch_jax.dispatch import autocast


@patch("torch.clear_autocast_cache", AT_FIRST_USE)
def _patch_autocast_cache(original: Any) -> Any:
    """Cast weights are kept until ``torch.autocast`` clears PyTorch's cache, which is in C++."""

    @functools.wraps(original)
    def clear_autocast_cache() -> None:
        autocast.clear_cache()
        original()

    return clear_autocast_cache


@patch("torch._TorchCompileInductorWrapper.__call__", AT_FIRST_USE)
def _patch_default_backend(original: Any) -> Any:
    """``torch.compile`` without a backend takes inductor, which does not know the device."""

    @functools.wraps(original)
    def call(self: Any, graph: Any, inputs: Any, **kwargs: Any) -> Any:
        from torch_jax.graphs import backend  # Dynamo's parts load with the first compiled function

        if not backend.concerns(graph, inputs):
            return original(self, graph, inputs, **kwargs)
        return backend.in_place_of_inductor(graph, inputs)

    return call
