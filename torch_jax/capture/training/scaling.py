"""``torch.amp.GradScaler`` inside a traced function.

Eagerly ``scaler.step(optimizer)`` looks whether a gradient was infinite, and skips the step if so.
A trace cannot look: there the step is always made, and for each storage that it wrote the program
chooses between what it held before and what the step put there.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import torch

from torch_jax._private import pytorch
from torch_jax.capture.capture import paused, unwatched
from torch_jax.core.active import ACTIVE
from torch_jax.core.patching import AT_FIRST_JIT, patch
from torch_jax.core.tracers import NotTraceableError
from torch_jax.core.x64 import x64
from torch_jax.memory import storage
from torch_jax.memory.storage import is_jax


def _scale(scaler: Any, original: Any, outputs: Any) -> Any:
    """Scale and growth tracker are made before a trace meets them."""
    capture = ACTIVE.tracer
    on_device = scaler._device == pytorch.DEVICE_TYPE
    if capture is not None and on_device and scaler.is_enabled() and scaler._scale is None:
        state = {"_scale": None, "_growth_tracker": scaler._growth_tracker}
        capture.undo.append(functools.partial(vars(scaler).update, state))
        with paused():
            scaler._lazy_init_scale_growth_tracker(torch.device(pytorch.DEVICE_TYPE))
    return original(outputs)


def _unwatched(_scaler: Any, original: Any, *args: Any) -> Any:
    """Not watched: the scaler reads nothing of the optimizer's groups but gradients."""
    with unwatched():
        return original(*args)


def _maybe_opt_step(scaler: Any, original: Any, optimizer: Any, state: Any, *args, **kwargs) -> Any:
    found = list(state["found_inf_per_device"].values())
    if ACTIVE.tracer is None or not all(map(is_jax, found)):
        return original(optimizer, state, *args, **kwargs)
    skipped = storage.memory_of(sum(found) != 0)
    step = _Step(ACTIVE.tracer, optimizer)
    result = optimizer.step(*args, **kwargs)
    step.refuse_host_side()
    step.choose(skipped)
    return result


class _Step:
    """Storages and numbers as they are before a step that the program may skip."""

    def __init__(self, capture: Any, optimizer: Any):
        self.capture, self.optimizer = capture, optimizer
        self.before = {id(memory): memory.array for memory in capture.storages()}
        self.numbers = _numbers(optimizer)
        self.tape_length = len(capture.tape.steps)

    def choose(self, skipped: Any) -> None:
        """Give every storage that was there before the step its old array where ``skipped``."""
        with x64():
            for memory in self.capture.storages():
                entry = self.capture.input_of(memory)
                old = self.before.get(id(memory), entry and entry.tracer)
                if old is not None and memory.array is not old:
                    memory.array = jnp.where(skipped, old, memory.array)

    def refuse_host_side(self) -> None:
        """Raise where the step did what the program cannot take back."""
        name = type(self.optimizer).__name__
        steps = self.capture.tape.steps[self.tape_length :]
        if any(step.save is not None for step in steps) or _numbers(self.optimizer) != self.numbers:
            raise NotTraceableError(
                f"{name} counts its steps on the host, where a program cannot tell that "
                "GradScaler.step skips one. Pass capturable=True to the optimizer if it has that, "
                "or call scaler.step(optimizer) outside of the traced function."
            )
        if any(self._is_made(tensor) for tensor in _state(self.optimizer) if is_jax(tensor)):
            raise NotTraceableError(
                f"{name} makes its state out of the gradients of its first step, which "
                "GradScaler.step may skip. Take one step before the function is traced."
            )

    def _is_made(self, tensor: torch.Tensor) -> bool:
        memory = tensor.untyped_storage()
        return id(memory) not in self.before and self.capture.input_of(memory) is None


def _state(optimizer: Any) -> list[Any]:
    return [value for state in optimizer.state.values() for value in state.values()]


def _numbers(optimizer: Any) -> list[Any]:
    """What an optimizer's state counts in Python."""
    return [value for value in _state(optimizer) if isinstance(value, int | float)]


def _calling(replacement: Any, original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(self, functools.partial(original, self), *args, **kwargs)

    return call


for _name, _replacement in (
    ("scale", _scale),
    ("_unscale_grads_", _unwatched),
    ("_maybe_opt_step", _maybe_opt_step),
):
    patch(
        f"torch.amp.grad_scaler.GradScaler.{_name}",
        AT_FIRST_JIT,
        why="Scalers look at values to skip a step: in a trace each written storage chooses.",
    )(functools.partial(_calling, _replacement))
