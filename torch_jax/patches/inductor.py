"""Inductor generates code for CPUs and GPUs only: asked for the device, it names what to use."""

from __future__ import annotations

from typing import Any

from torch_jax._private import pytorch
from torch_jax.core.patching import around


@around("torch._inductor.graph.get_device_op_overrides", "torch._inductor.graph")
def _patch_overrides(original: Any, device: str) -> Any:
    """AOT-Inductor has no code for the device, and ends in a bare ``KeyError: 'jax'``."""
    if device == pytorch.DEVICE_TYPE:
        raise NotImplementedError(
            "AOT-Inductor generates code for CPUs and GPUs of its own, and has none for device "
            "'jax'. torch_jax.export(model, args) writes a model on the device as a file that "
            "runs without PyTorch; torch.compile(model) compiles it for this process; "
            "model.to('cpu') may be given to AOT-Inductor"
        )
    return original(device)
