"""A program to look at: recorded, compiled, and not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_jax._private import pytorch
from torch_jax.capture.left_behind import LeftBehind, describe
from torch_jax.capture.observer import Observer, looks_at_a_value
from torch_jax.capture.storages import OfStorage
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node
from torch_jax.core.x64 import x64
from torch_jax.memory import sharding
from torch_jax.memory.storage import give_back
from torch_jax.recorded import lazy
from torch_jax.recorded.lowered import Lowered
from torch_jax.recorded.program import Program
from torch_jax.recorded.recorder import by_kind


def lowered(call: Callable[[], Any]) -> Lowered:
    """Record a call, and compile it in place of running it; tensors are then as before."""
    observer = Observer([])
    with lazy.observed(observer):
        recorder = ACTIVE.recorder
        recording = recorder.recording
        try:
            with observer.watching():
                result = [call()]
            left = describe(observer, result)
            if recorder.recording is not recording:
                raise looks_at_a_value()
            program = _program(observer, recording, left)
        finally:
            recorder.leave(recording)
            _put_back(observer)
    return Lowered(program)


def _program(observer: Observer, recording: Any, left: LeftBehind) -> Any:
    """Return what JAX lowers for what the call has written, returned and left behind."""
    state, nodes, numbers, arrays = recording.written_down()
    outputs = tuple(dict.fromkeys([*(node for _, node in left.written), *left.new, *left.flags]))
    forms = [(tuple(array.shape), array.dtype) for array in arrays]
    written = [OfStorage(at) for at, _ in left.written]
    sources = enumerate(observer.sources(arrays))
    donated = tuple(at for at, s in sources if isinstance(s, OfStorage) and s in written)
    with x64():
        program = Program(state, outputs, donated, forms.__getitem__)
        wanted = tuple(sharding.wanted_by(nodes[at]) for at in program.outputs)
        return program.lower(*by_kind(numbers), arrays, wanted=wanted)


def _put_back(observer: Observer) -> None:
    """Give each storage what it held, and each tensor the gradient that it had."""
    met = observer.storages.met
    written = [one for one in met if type(one.storage.array) is Node]
    give_back([one.storage for one in written], [one.old() for one in written])
    for gradient in observer.optimizers.gradients.values():
        gradient.tensor.grad = gradient.before
    pytorch.set_versions([one.tensor for one in met], [one.version for one in met])
    observer.draws.undo()
