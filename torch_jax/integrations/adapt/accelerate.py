"""Accelerate: it chooses the device, one or many processes, and keeps its random state.

Devices that it finds by itself come first: CUDA, ``cpu=True``, ``ACCELERATE_TORCH_DEVICE``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import around, patch
from torch_jax.device import device_module
from torch_jax.integrations.adapt import choice

_STATE, _ACCELERATOR = "accelerate.state", "accelerate.accelerator"
_DATACLASSES = "accelerate.utils.dataclasses"


@patch(f"{_STATE}.PartialState.default_device", _STATE, since="accelerate 1.0")
def _patch_default_device(original: Any) -> Any:
    """Accelerate chooses from a list of accelerators, in which this device is not."""

    def default_device(self: Any) -> Any:
        found = original.fget(self)
        return choice.DEVICE if choice.is_left(found.type) else found

    return property(default_device, doc=original.__doc__)


@around(f"{_STATE}.PartialState._prepare_backend", _STATE, since="accelerate 1.0")
def _patch_prepare_backend(
    original: Any,
    self: Any,
    cpu: bool = False,
    sagemaker_dp: bool = False,
    backend: str | None = None,
) -> Any:
    """Accelerate gives processes of torchrun a backend only for accelerators in its list."""
    found, kind = original(self, cpu, sagemaker_dp, backend)
    is_one_of_many = not cpu and int(os.environ.get("LOCAL_RANK", -1)) != -1
    is_ours = choice.is_device(self.device or choice.DEVICE) and choice.is_chosen()
    if not (is_one_of_many and is_ours and kind.value in ("NO", "MULTI_GPU")):
        return found, kind
    self.device = choice.DEVICE  # each process has one, of any rank
    # DistributedDataParallel would use the number of the process as that of its device.
    os.environ.setdefault("ACCELERATE_BYPASS_DEVICE_MAP", "true")
    return backend or pytorch.DEVICE_TYPE, type(kind)("MULTI_GPU")


@patch(f"{_ACCELERATOR}.Accelerator.__init__", _ACCELERATOR, since="accelerate 1.0")
def _patch_accelerator(original: Any) -> Any:
    """Accelerate allows ``mixed_precision="fp16"`` only for devices in a list, without this one."""
    return choice.admit(original, "xpu")


@around(f"{_ACCELERATOR}.get_grad_scaler", _ACCELERATOR, since="accelerate 1.0")
def _patch_grad_scaler(original: Any, distributed_type: Any = None, **kwargs: Any) -> Any:
    """Accelerate makes a scaler for CUDA if it finds none of the other accelerators in its list."""
    state = sys.modules[_STATE].PartialState()
    is_sharded = getattr(distributed_type, "value", None) == "FSDP"
    if is_sharded or not choice.is_device(state.device):
        return original(distributed_type, **kwargs)
    return torch.amp.GradScaler(pytorch.DEVICE_TYPE, **kwargs)


def keep_random_state(folder: Any) -> None:
    """Write the state of the device's generator into a folder, if this process is on the device."""
    for file in _states_files(folder):
        torch.save(device_module.get_rng_state(), file)


def restore_random_state(folder: Any) -> None:
    """Read it again; a folder that another device has written has none."""
    for file in filter(Path.exists, _states_files(folder)):
        device_module.set_rng_state(torch.load(file))


def _states_files(folder: Any) -> list[Path]:
    """Return the file for this process, if it is on the device."""
    state = sys.modules[_STATE].PartialState()
    name = f"random_state_{pytorch.DEVICE_TYPE}_{state.process_index}.pt"
    return [Path(folder) / name] if choice.is_device(state.device) else []


@around(f"{_ACCELERATOR}.save_accelerator_state", _ACCELERATOR, since="accelerate 1.0")
def _patch_save(original: Any, output_dir: str, *args: Any, **kwargs: Any) -> Any:
    """Accelerate's ``save_state`` saves random states of the accelerators in its own list only."""
    result = original(output_dir, *args, **kwargs)
    keep_random_state(output_dir)
    return result


@around(f"{_ACCELERATOR}.load_accelerator_state", _ACCELERATOR, since="accelerate 1.0")
def _patch_load(original: Any, input_dir: str, *args: Any, **kwargs: Any) -> Any:
    """Accelerate's ``load_state`` restores random states of the accelerators in its list only."""
    result = original(input_dir, *args, **kwargs)
    restore_random_state(input_dir)
    return result


@patch(f"{_DATACLASSES}.DynamoBackend", _DATACLASSES, since="accelerate 1.0", is_registration=True)
def _register_backend(backends: Any) -> Callable[[], None]:
    """Accelerate takes only backends of an enumeration for ``torch.compile``, also of its users."""
    name = pytorch.DEVICE_TYPE.upper()
    member = str.__new__(backends, name)
    member._name_ = member._value_ = name
    backends._member_map_[name] = backends._value2member_map_[name] = member
    backends._member_names_.append(name)
    type.__setattr__(backends, name, member)

    def take_back() -> None:
        del backends._member_map_[name], backends._value2member_map_[name]
        backends._member_names_.remove(name)
        type.__delattr__(backends, name)

    return take_back
