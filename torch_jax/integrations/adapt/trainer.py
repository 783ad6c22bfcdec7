"""The ``Trainer`` of transformers, and those of other libraries that are made of it (TRL).

The Trainer leaves the choice of the device to Accelerate, and asks for some devices by itself.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from torch_jax._private import pytorch
from torch_jax.core.patching import around, patch
from torch_jax.integrations.adapt import accelerate, choice

_ARGUMENTS, _TRAINER = "transformers.training_args", "transformers.trainer"
_SINCE = "transformers 5.0"


@patch(f"{_ARGUMENTS}.TrainingArguments._setup_devices", _ARGUMENTS, since=_SINCE)
def _patch_setup_devices(original: Any) -> Any:
    """The Trainer gives one process a device from its own list, or the CPU."""
    compute = getattr(original, "func", None) or original.fget

    def _setup_devices(self: Any) -> Any:
        found = compute(self)
        state = getattr(self, "distributed_state", None)
        if self.use_cpu or state is None or not choice.is_device(state.device):
            return found
        self._n_gpu = 1
        return state.device

    made = type(original)(functools.wraps(compute)(_setup_devices))
    if hasattr(made, "__set_name__"):
        made.__set_name__(None, "_setup_devices")
    return made


@patch(f"{_ARGUMENTS}.is_torch_bf16_gpu_available", _ARGUMENTS, since=_SINCE)
def _patch_bf16(original: Any) -> Any:
    """The Trainer allows ``bf16=True`` only for accelerators in a list, without this one."""
    return functools.wraps(original)(lambda: choice.is_chosen() or original())


@around(f"{_ARGUMENTS}.TrainingArguments.__post_init__", _ARGUMENTS, since=_SINCE)
def _patch_defaults(original: Any, self: Any) -> None:
    """``torch_compile=True`` means inductor, which has no code for the device.

    Batches are put into pinned memory, which the device does not have and warns of.
    """
    wanted = self.torch_compile or self.torch_compile_mode is not None
    on_cpu = self.use_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true")
    if wanted and self.torch_compile_backend is None and not on_cpu and choice.is_chosen():
        self.torch_compile_backend = pytorch.DEVICE_TYPE
    original(self)
    if choice.is_device(self.device):
        self.dataloader_pin_memory = False


@around(f"{_TRAINER}.Trainer._save_rng_state", _TRAINER, since=_SINCE)
def _patch_save(original: Any, self: Any, output_dir: str) -> None:
    """The Trainer's checkpoints have random states of the accelerators that it knows only."""
    original(self, output_dir)
    accelerate.keep_random_state(output_dir)


@around(f"{_TRAINER}.Trainer._load_rng_state", _TRAINER, since=_SINCE)
def _patch_load(original: Any, self: Any, checkpoint: str | None) -> None:
    """The Trainer loads random states of the accelerators that it knows only."""
    original(self, checkpoint)
    if checkpoint is not None:
        accelerate.restore_random_state(checkpoint)
