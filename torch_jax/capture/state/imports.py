"""``import`` inside a function: of modules that are loaded it reads their names, and no more."""

from __future__ import annotations

import functools
import importlib.util
import sys
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from torch_jax.capture.state.bytecode import instructions_of


class Import(NamedTuple):
    """An import statement: the dots before the name, the name, and what is taken from there."""

    level: int
    name: str
    names: tuple[str, ...]


@functools.cache
def imports(code: CodeType) -> tuple[Import, ...]:
    """The import statements of a piece of code.

    >>> def f():
    ...     import os.path
    ...     from ..models import gpt
    >>> [tuple(one) for one in imports(f.__code__)]
    [(0, 'os.path', ()), (2, 'models', ('gpt',))]
    """
    instructions = instructions_of(code)
    return tuple(
        Import(instructions[at - 2].argval, i.argval, tuple(instructions[at - 1].argval or ()))
        for at, i in enumerate(instructions)
        if i.opname == "IMPORT_NAME"
    )


def loaded_by(code: CodeType, namespace: dict[str, Any]) -> set[str]:
    """The names of those modules that are loaded, of all that code with these globals imports."""
    found: set[str] = set()
    for one in imports(code):
        name = _absolute(one, namespace)
        found |= {name, *(f"{name}.{inner}" for inner in one.names)}
        if not one.names:
            found.add(name.partition(".")[0])  # the variable holds it
    return {name for name in found if loaded(name) is not None}


def _absolute(one: Import, namespace: dict[str, Any]) -> str:
    if not one.level:
        return one.name
    package = namespace.get("__package__") or getattr(namespace.get("__spec__"), "parent", "")
    try:
        return importlib.util.resolve_name("." * one.level + one.name, package or "")
    except ImportError:
        return ""


def loaded(name: Any) -> ModuleType | None:
    """A module of which importing it runs nothing any more; None otherwise."""
    module = sys.modules.get(name)
    is_half = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_half else module


def caller(frame: Any) -> Any:
    """The frame that imports, seen from one of Python's own machinery for it."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame
