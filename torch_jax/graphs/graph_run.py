"""One run of an fx graph or of an exported function: its draws, and its checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core import tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.x64 import x64
from torch_jax.memory import generators

_DEVICE = torch.device(pytorch.DEVICE_TYPE)


class GraphRun:
    """The tracer of one run: its randomness, and the checks that a program cannot raise.

    Generators on the host take no part: a run has the key words that it was given, and does not
    change the states of generators.

    Attributes:
      words: the key words of the first draw, uint32 ``[4]``; without them ``generator`` draws.
      steps: how many draws there were.
      mode: a ``TorchDispatchMode`` that is to see every operator.
      checks: flags that are false where an index was out of range, with the message and the type of
        the error to raise when the program has run; kernels append them.
    """

    def __init__(self, words: Any, generator: Any = None, mode: Any = None):
        self.words, self.generator, self.steps = words, generator, 0
        self.mode = mode
        self.checks: list[tuple[Any, str, type[Exception]]] = []
        self._again: list[Any] = []

    def draw(self, generator: Any) -> Any:
        """Return key words of the next random operator."""
        if self._again:
            return self._again[-1]
        words = self.peek()
        if self.generator is not None:
            self.generator.advance(1)
        self.steps += 1
        return words

    def host_words(self, generator: torch.Generator) -> Any:
        """Return the run's own words: the program cannot read the CPU's generator at each call."""
        return self.draw(generator)

    def peek(self) -> Any:
        """Return key words that the next random operator will draw."""
        if self.generator is not None:
            return generators.words(*self.generator.where())
        if self.words is None:
            raise tracers.NotTraceableError(
                "the graph draws random numbers, which would be the same at each call of a traced "
                "program: pass key=, a jax.random.key"
            )
        with x64():
            return generators.words_later(self.words, self.steps)

    @contextmanager
    def again(self, words: Any) -> Iterator[None]:
        """Draw these words."""
        self._again.append(words)
        try:
            yield
        finally:
            self._again.pop()

    def watching_inside(self) -> Any:
        """See operators again, within an operator that calls Python functions.

        PyTorch takes a mode off while it handles an operator, branches of ``cond`` included.
        """
        return nullcontext() if self.mode is None else self.mode

    def state_of(self, generator: Any) -> torch.Tensor:
        """Return the present state: nothing is drawn from a generator here."""
        return generators.as_state(*generator.where())

    def put_to(self, generator: Any, state: torch.Tensor) -> None:
        """Do nothing: nothing is drawn from a generator here."""

    def seeded(self, generator: Any) -> None:
        """Do nothing: nothing is drawn from a generator here."""

    def looked_at_seed(self, generator: Any) -> None:
        """Do nothing: a seed that Python reads is a constant of the graph already."""

    def __getattr__(self, name: str) -> Any:
        """Refuse attributes that no graph has, such as steps of optimizers."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise tracers.NotTraceableError(
            f"what needs {name!r} of a trace can be no part of a graph or of an exported program: "
            "use torch_jax.jit, or export the model alone"
        )


@contextmanager
def running(run: GraphRun, autograd: bool = False) -> Iterator[None]:
    """Run a graph: below autograd, out of sight of modes, with ``run`` as tracer.

    With ``autograd`` a function runs, which may differentiate.
    """
    before, ACTIVE.tracer = ACTIVE.tracer, run
    level: Any = pytorch.below_autograd()
    if autograd:  # a backward pass must run on the thread that traces
        level = torch.autograd.set_multithreading_enabled(False)
    try:
        with pytorch.no_dispatch_modes(), level, _DEVICE, run.watching_inside():
            yield
    finally:
        ACTIVE.tracer = before
