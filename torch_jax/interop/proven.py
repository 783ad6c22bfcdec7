"""JAX functions inside functions under ``torch_jax.jit``: what they read is guarded as a whole.

The proof that a function's Python may be skipped knows nothing of JAX. It need not: a JAX function
runs when it is traced, and its trace hangs on nothing but the arguments and the function's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch_jax.capture.state.places import Place
from torch_jax.core.active import ACTIVE, in_whole_function
from torch_jax.interop.function_errors import name_of
from torch_jax.interop.function_state import owner_of, state_of


class _Asked(NamedTuple):
    """A function with its static arguments, and its state when it was called."""

    function: Any
    static: tuple
    state: tuple

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class StateOfFunction(Place):
    """All that a JAX function reads: whether it is as it was. The owner is that of its traces."""

    __slots__ = ()
    can_be_effect = False

    @staticmethod
    def read(owner: Any, key: Any) -> bool:
        """Whether the state is as it was."""
        return state_of(key.function, key.static) == key.state

    def is_read_by(self, ran: Any) -> bool:
        """Always: the function was called."""
        return True


def note(function: Callable[..., Any], static: tuple, state: tuple | None) -> None:
    """A JAX function is called: what is watching shall know of all that it reads."""
    watch = _watch()
    if watch is None:
        return
    if state is None:
        _doubt(watch, f"the JAX function {name_of(function)} reads what may change unseen")
        return
    owner = owner_of(function)
    label = f"what the JAX function {name_of(function)} reads"
    place = StateOfFunction(owner, _Asked(function, static, state), label, True)
    watch.notes.places.setdefault(place.address, place)


def note_callbacks(function: Callable[..., Any], calls_back: bool) -> None:
    """A JAX function may call Python back, which may do anything."""
    watch = _watch() if calls_back else None
    if watch is not None:
        _doubt(watch, f"the JAX function {name_of(function)} calls back to Python")


def _watch() -> Any:
    return ACTIVE.tracer.watch if in_whole_function() else ACTIVE.scout


def _doubt(watch: Any, why: str) -> None:
    watch.proof.add(why)
    watch.refuse_doubt()
