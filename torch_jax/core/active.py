"""State of this thread: its trace, its recorder, and blocks of ``torch_jax.trace_ops``.

An executor that makes a program of operators puts its :class:`Tracer` into :data:`ACTIVE` while it
traces. All code below it – kernels, generators, control flow – asks the tracer where an operator
run by itself would ask the device or the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Tracer(Protocol):
    """The answers of an executor while it makes a program of operators.

    Executors differ in their knowledge:

    - Eager has no tracer: each operator runs at once, and has every value.
    - A graph of fx, of ``torch.compile`` or of an export has been captured by others
      (:class:`torch_jax.graphs.graph_run.GraphRun`): it asks nothing of Python, and all its
      draws and checks must be inputs or outputs of its program.
    - A recording (:class:`torch_jax.recorded.recorder.Recorder`), which ``torch_jax.jit`` makes of
      each call, is no tracer: Python gets every value that it reads, since the recorded operators
      are run then.
    """

    checks: list[tuple[Any, str, type[Exception]]]
    """Flags that a program computes but cannot raise for: each is false where its error, given by
    message and type, is to be raised when the program has run. Kernels append."""

    # --- randomness -------------------------------------------------------------------------------

    def draw(self, generator: Any) -> Any:
        """Return key words of the next random operator, uint32 ``[4]``; ``generator`` is ours."""

    def host_words(self, generator: torch.Generator) -> Any:
        """Return key words of a random operator that was given a generator of the CPU."""

    def seeded(self, generator: Any) -> None:
        """Note that a generator is about to be seeded: later draws follow from that seed."""

    def looked_at_seed(self, generator: Any) -> None:
        """Note that Python is about to read a generator's seed as a number."""

    def state_of(self, generator: Any) -> torch.Tensor:
        """Return the state of a generator, a CPU tensor, as Python asks for it."""

    def put_to(self, generator: Any, state: torch.Tensor) -> None:
        """Note that a generator is about to take over a state, a CPU tensor."""

    # --- what operators see -----------------------------------------------------------------------

    def watching_inside(self) -> AbstractContextManager[Any]:
        """See operators again, within an operator that calls Python functions.

        PyTorch takes a mode off while it handles an operator, branches of ``cond`` included.
        """

    def unseen(self) -> AbstractContextManager[Any]:
        """Run Python that is none of the user's, such as PyTorch's own compiler."""


class _Active(threading.local):
    # A Tracer, None in eager mode. Code for one kind of tracer asks it for more than the protocol
    # has, hence Any.
    tracer: Any = None
    # The recorder writes operators down in place of running them; None where they run at once. A
    # tracer goes before it.
    recorder: Any = None
    # The observer watches a recorded call of which later calls skip the Python: ``jit(pure=True)``.
    observer: Any = None
    words: Any = None  # of the draw of a recorded operator that runs: it has been drawn before
    call_trees: tuple = ()  # the blocks of torch_jax.trace_ops that are open


ACTIVE = _Active()


class _OnFirstUse:
    """A value that a thread gets at its first use: ``begin`` makes it.

    Attributes that the thread has set already come first, at no cost.
    """

    def __init__(self, begin: Callable[[], Any]):
        self._begin = begin

    def __get__(self, active: Any, kind: type | None = None) -> Any:
        return self._begin()


def begin_threads_by(begin: Callable[[], Any]) -> None:
    """Have ``begin`` called at the first use of the device on each thread.

    ``begin`` returns the thread's ``ACTIVE.recorder``, and stores it there so that it is called
    once.
    """
    _Active.recorder = _OnFirstUse(begin)


def tracer() -> Tracer | None:
    """Return the tracer of this thread, None in eager mode. Hot paths ask ``ACTIVE`` themselves."""
    return ACTIVE.tracer


@contextmanager
def unrecorded() -> Iterator[None]:
    """Run the operators of a block at once, also while this thread records."""
    recorder, ACTIVE.recorder = ACTIVE.recorder, None
    try:
        yield
    finally:
        ACTIVE.recorder = recorder
