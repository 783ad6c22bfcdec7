"""Accelerate: it chooses the device, one or many processes, and keeps its random state.

What it finds by itself comes first: a CUDA device, ``cpu=True``, ``ACCELERATE_TORCH_DEVICE``.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import patch
from torch_jax.integrations.adapt import choice

_STATE, _ACCELERATOR = "accelerate.state", "accelerate.accelerator"
_DATACLASSES = "accelerate.utils.dataclasses"


@patch(f"{_STATE}.PartialState.default_device", _STATE, since="accelerate 1.0")
def _patch_default_device(original: Any) -> Any:
    """It asks for the accelerators that it knows, one after the other."""
    return choice.as_property(
        original,
        lambda _, found: choice.DEVICE if choice.is_left(found.type) else found,
    )


@patch(f"{_STATE}.PartialState._prepare_backend", _STATE, since="accelerate 1.0")
def _patch_prepare_backend(original: Any) -> Any:
    """A process that torchrun has started gets a backend for the accelerators that it knows."""

    @functools.wraps(original)
    def prepare(
        self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> Any:
        found, kind = original(self, cpu, sagemaker_dp, backend)
        is_one_of_many = not cpu and int(os.environ.get("LOCAL_RANK", -1)) != -1
        is_ours = choice.is_device(self.device or choice.DEVICE) and choice.is_chosen()
        if not (is_one_of_many and is_ours and kind.value in ("NO", "MULTI_GPU")):
            return found, kind
        self.device = choice.DEVICE  # each process has one, whatever its rank
        # DistributedDataParallel would be told that its device has the number of the process.
        os.environ.setdefault("ACCELERATE_BYPASS_DEVICE_MAP", "true")
        return backend or pytorch.DEVICE_TYPE, type(kind)("MULTI_GPU")

    return prepare


@patch(f"{_ACCELERATOR}.Accelerator.__init__", _ACCELERATOR, since="accelerate 1.0")
def _patch_accelerator(original: Any) -> Any:
    """``mixed_precision="fp16"`` is for the devices of a list."""
    return choice.admit(original, "xpu")


@patch(f"{_ACCELERATOR}.get_grad_scaler", _ACCELERATOR, since="accelerate 1.0")
def _patch_grad_scaler(original: Any) -> Any:
    """A scaler is made for CUDA where none of the other accelerators is there."""

    @functools.wraps(original)
    def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> Any:
        state = sys.modules[_STATE].PartialState()
        is_sharded = getattr(distributed_type, "value", None) == "FSDP"
        if is_sharded or not choice.is_device(state.device):
            return original(distributed_type, **kwargs)
        return torch.amp.GradScaler(pytorch.DEVICE_TYPE, **kwargs)

    return get_grad_scaler


def _states_file(folder: Any, process: int) -> Path:
    return Path(folder) / f"random_state_{pytorch.DEVICE_TYPE}_{process}.pt"


def keep_random_state(folder: Any, process: int) -> None:
    """Write the state of the device's generator into a folder, for this process."""
    torch.save(
        torch.get_device_module(choice.DEVICE).get_rng_state(), _states_file(folder, process)
    )


def restore_random_state(folder: Any, process: int) -> None:
    """Read it again; a folder that another device has written has none."""
    file = _states_file(folder, process)
    if file.exists():
        torch.get_device_module(choice.DEVICE).set_rng_state(torch.load(file))


def _beside_states(original: Any, folder: str, also: Callable[[Any, int], None]) -> Any:
    """The function of Accelerate's that saves or loads all states, and this device's with it."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if choice.is_device(sys.modules[_STATE].PartialState().device):
            given = signature.bind(*args, **kwargs).arguments
            also(given[folder], given["process_index"])
        return result

    return call


@patch(f"{_ACCELERATOR}.save_accelerator_state", _ACCELERATOR, since="accelerate 1.0")
def _patch_save(original: Any) -> Any:
    """``save_state`` keeps the random states of the accelerators that it knows."""
    return _beside_states(original, "output_dir", keep_random_state)


@patch(f"{_ACCELERATOR}.load_accelerator_state", _ACCELERATOR, since="accelerate 1.0")
def _patch_load(original: Any) -> Any:
    """``load_state`` restores the random states of the accelerators that it knows."""
    return _beside_states(original, "input_dir", restore_random_state)


@patch(f"{_DATACLASSES}.DynamoBackend", _DATACLASSES, since="accelerate 1.0", is_registration=True)
def _register_backend(backends: Any) -> Callable[[], None]:
    """Backends of ``torch.compile`` are the members of an enumeration, whoever registers others."""
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
