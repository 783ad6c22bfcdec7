"""A call without Python: the program of an observed call, run for other arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.autograd.graph import increment_version

from torch_jax import config
from torch_jax.capture.gradients import Gradients
from torch_jax.capture.guards import Guards
from torch_jax.capture.launch import Launch
from torch_jax.capture.left_behind import LeftBehind
from torch_jax.capture.numbers_of_calls import Numbers
from torch_jax.capture.observer import Observer
from torch_jax.capture.results import Call
from torch_jax.core import policies
from torch_jax.memory.transfer import on_host


class Replay:
    """A program, to be called with the leaves of other arguments.

    Attributes:
      graph: the operators of the observed call.
      left: what the call left behind.
      launch: the program, with the storages that it reads and writes.
      audits: when a call is observed again, and compared.
      read: the numbers of optimizers that steps have read before any scheduler moved on.
      drawn_from: where the last call found each generator.
    """

    def __init__(self, observer: Observer, left: LeftBehind, backward: Any = None):
        self.graph, self.left, self.backward = observer.graphs[0], left, backward
        self.audits, self.read = Due(), observer.optimizers.read
        self._tape, self._generators = observer.tape, observer.draws.end()
        self._numbers = Numbers(observer, self.graph)
        self._tape.prune({slot for _, slot in self._numbers.slots})
        self.launch = Launch(observer, left)
        errors = [(message, kind) for _, message, kind in observer.checks]
        self._checks = list(zip(self.launch.places(left.flags), errors, strict=True))
        self._new = self.launch.places(left.new)
        self._residuals = self.launch.places(left.residuals)
        self.gradients = Gradients(left.gradients, [left.result])
        self.guards = Guards(*left.guarded(observer))
        self.drawn_from: list[tuple[int, int]] = []

    def sizes(self) -> tuple[int, int, int]:
        """Return how many tensors are captured, memories donated, and numbers read at each call."""
        launch = self.launch
        return launch.memories.captured, len(launch.donated), len(self._numbers.slots)

    def changed(self, leaves: Sequence[Any]) -> str | None:
        """Return why the program does not serve a call with these arguments; None where it does."""
        return self.launch.memories.changed(leaves) or self.guards.changed()

    def is_due(self, leaves: Sequence[Any]) -> bool:
        """Return whether an audit is due: by count, or by an argument in another memory."""
        is_new = self.launch.memories.meets_another(leaves)
        return self.audits.is_due() or (is_new and self.audits.is_on())

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Run; raises :class:`Changed` where a number is not as it was."""
        env = self._tape.play() if self._tape.steps else self._tape.env
        self.drawn_from = drawn_from = [one.move_on() for one in self._generators]
        self.gradients.clear(leaves)
        try:
            outputs = self.launch(leaves, *self._numbers.of_call(env, drawn_from))
            for tensor in self.left.counted(leaves):
                increment_version(tensor)
            call = Call(leaves, [outputs[at] for at in self._new])
            self.gradients.fill(call)
        except BaseException:
            self.gradients.drop()
            raise
        self._raise_failed_checks(outputs)
        if self.backward is None:
            return self.left.result.build(call)
        return self.backward.connect(self, call, leaves, [outputs[at] for at in self._residuals])

    def _raise_failed_checks(self, outputs: list[Any]) -> None:
        """Raise what an operator would have raised, had it been able to look."""
        if self._checks and policies.checks_indices():
            for at, (message, kind) in self._checks:
                if not on_host(outputs[at]):
                    raise kind(f"{message} (in a function under torch_jax.jit)")


class Due:
    """When an audit is due: at the 2nd, 4th, 8th … call, and then after so many."""

    def __init__(self) -> None:
        self._calls, self._due = 1, 2

    def is_first(self) -> bool:
        """Return whether the audit that is due now is that of the second call."""
        return self._calls == 2

    @staticmethod
    def is_on() -> bool:
        """Return whether there are audits at all."""
        return bool(config.get("jit_check_every"))

    def is_due(self) -> bool:
        """Return whether the next call is to be recorded; asked once for each."""
        every = config.get("jit_check_every")
        if not every:
            return False
        self._calls += 1
        if self._calls < self._due:
            return False
        self._due = min(2 * self._due, self._due + every)
        return True
