"""transformers: its question whether it is being traced, and operators of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import patch

_MODULE = "transformers.utils.import_utils"


@patch(f"{_MODULE}.is_jax_jitting", _MODULE, since="transformers 5.0")
def _patch_is_jax_jitting(original: Any) -> Any:
    """Models of transformers skip reading values only if they know that they are being traced.

    While operators are recorded, each tensor counts as traced: a read would end the program.
    """

    def is_jax_jitting(x: Any) -> bool:  # of this module: Dynamo sees through it
        if getattr(getattr(x, "device", None), "type", "") != pytorch.DEVICE_TYPE:
            return original(x)
        if torch.compiler.is_dynamo_compiling():
            return True
        from torch_jax.core import tracers
        from torch_jax.core.active import ACTIVE
        from torch_jax.memory import storage

        return ACTIVE.recorder is not None or tracers.is_traced(storage.held_by(x))

    return is_jax_jitting


@patch(
    "torch.ops.transformers",
    "transformers.integrations.moe",
    since="transformers 5.0",
    is_registration=True,
)
def _serve_experts(operators: Any) -> Callable[[], None]:
    """transformers' operators have kernels for every device, which would hide this device's."""
    library = torch.library.Library("transformers", "IMPL")
    for name in ("grouped_mm_fallback", "grouped_mm_fallback_backward"):
        if (packet := getattr(operators, name, None)) is not None:
            library.impl(name, functools.partial(_by_ladder, packet.default), "PrivateUse1")
    return library._destroy


def _by_ladder(op: Any, *args: Any, **kwargs: Any) -> Any:
    from torch_jax.dispatch import ladder

    return ladder.fallback(op, *args, **kwargs)
