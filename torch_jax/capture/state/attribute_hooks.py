"""Classes with a ``__getattr__``: wrappers that pass on what they do not have themselves.

Such a method is Python that is seen to run, and that says what it was asked for. So the name counts
as one that its code mentions: wherever the walk comes by it is noted, also where it is missing and
may come.
"""

from __future__ import annotations

import dis
import functools
import types
from types import CodeType
from typing import Any

from torch_jax.capture.state.bytecode import HOOK, Names, asked_for, instructions_of

# What the body of a ``try`` may name that asks the next class.
_ASKS_ON = frozenset(("super", "__class__", HOOK))


def is_understood(hook: Any) -> bool:
    """Whether a class's ``__getattr__`` is a function that was written as one."""
    return isinstance(hook, types.FunctionType) and asked_for(hook.__code__) is not None


def with_asked(frame: Any, names: Names) -> Names:
    """The names that the code of a frame mentions, with that which a hook is asked for."""
    variable = asked_for(frame.f_code)
    name = frame.f_locals.get(variable) if variable is not None else None
    return _with(names, name) if isinstance(name, str) else names


@functools.lru_cache(4096)
def _with(names: Names, name: str) -> Names:
    return names._replace(
        attributes=names.attributes | {name, HOOK}, probes=names.probes | {name, HOOK}
    )


def asks_on(code: CodeType, instructions: list[dis.Instruction], at: int) -> bool:
    """Whether an instruction loads a ``__getattr__`` that is asked for the same name at once."""
    variable = asked_for(code)
    return (
        variable is not None
        and instructions[at].argval == HOOK
        and instructions[at + 1].argval == variable
    )


@functools.cache
def only_tries_to_ask_on(code: CodeType) -> bool:
    """Whether a hook does nothing outside its ``except`` but to ask the next class.

    What it catches is then that the name is missing, which is noted.

    >>> class Wrapper(types.SimpleNamespace):
    ...     def __getattr__(self, name):
    ...         try:
    ...             return super().__getattr__(name)
    ...         except AttributeError:
    ...             return getattr(self.inner, name)
    >>> only_tries_to_ask_on(Wrapper.__getattr__.__code__)
    True
    """
    if asked_for(code) is None:
        return False
    named: set[str] = set()
    for instruction in instructions_of(code):
        if instruction.opname == "PUSH_EXC_INFO":
            return HOOK in named and named <= _ASKS_ON
        if instruction.opname.startswith(("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER")):
            named.add(instruction.argval)
    return False
