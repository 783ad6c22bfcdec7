"""JAX functions inside functions under ``torch_jax.jit``: what they read is guarded as a whole.

The proof that a function's Python may be skipped knows nothing of JAX. It need not: a JAX function
runs when it is traced, and its trace hangs on nothing but the arguments and the function's state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from torch_jax.capture import capture
from torch_jax.capture.state.places import Place
from torch_jax.core.active import ACTIVE, in_whole_function
from torch_jax.interop.function_errors import name_of
from torch_jax.interop.function_state import state_of


class _Asked(NamedTuple):
    """A function, and its state when it was called."""

    function: Any
    state: tuple

    def __hash__(self) -> int:
        return id(self.function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and other.function is self.function


class StateOfFunction(Place):
    """All that a JAX function reads: whether it is as it was. The owner is the function's code."""

    __slots__ = ()
    can_be_effect = False

    @staticmethod
    def read(owner: Any, key: Any) -> bool:
        """Whether the state is as it was."""
        return state_of(key.function) == key.state

    def is_read_by(self, ran: Any) -> bool:
        """Always: the function was called."""
        return True


def note(function: Callable[..., Any], state: tuple | None) -> None:
    """A JAX function is called: what is watching shall know of all that it reads."""
    watch = ACTIVE.tracer.watch if in_whole_function() else ACTIVE.scout
    if watch is None:
        return
    if state is None:
        watch.proof.add(f"the JAX function {name_of(function)} reads what may change unseen")
        watch.refuse_doubt()
        return
    owner = getattr(function, "__code__", type(function))
    label = f"what the JAX function {name_of(function)} reads"
    place = StateOfFunction(owner, _Asked(function, state), label, True)
    watch.notes.places.setdefault(place.address, place)


def unwatched() -> AbstractContextManager[None]:
    """Run Python that is no part of a function that is being watched."""
    return capture.unwatched()
