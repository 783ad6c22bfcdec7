"""A program to look at: recorded, compiled, and not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_jax._private import pytorch
from torch_jax.capture.observer import Observer
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node
from torch_jax.core.tracers import DataDependentError
from torch_jax.memory.storage import give_back
from torch_jax.recorded import lazy
from torch_jax.recorded.elsewhere import Lowered


def lowered(call: Callable[[], Any]) -> Lowered:
    """Record a call, and compile it in place of running it; tensors are then as before."""
    observer = Observer([])
    with lazy.observed(observer):
        recorder = ACTIVE.recorder
        recording = recorder.recording
        try:
            with observer.watching():
                result = [call()]
            if recorder.recording is not recording:
                raise DataDependentError(
                    "a value of a tensor is looked at while the function runs, so that it is no "
                    "one program"
                )
            program = recording.lowered()
            result.clear()  # which the program gives, since it was alive
        finally:
            recorder.leave(recording)
            _put_back(observer)
    return Lowered(program)


def _put_back(observer: Observer) -> None:
    """Give each storage what it held, and each tensor the gradient that it had."""
    met = observer.storages.met
    written = [one for one in met if type(one.storage.array) is Node]
    give_back([one.storage for one in written], [one.old() for one in written])
    for gradient in observer.optimizers.gradients.values():
        gradient.tensor.grad = gradient.before
    pytorch.set_versions([one.tensor for one in met], [one.version for one in met])
    observer.draws.undo()
