"""PyTorch's symbolic sizes and sympy, imported when there are some.

PyTorch's meta functions ask whether a bool is true, as it may be a symbolic one, and whether an
argument is an expression of sympy. Of plain values the answers are plain, but the questions import
sympy, which takes longer than all the rest of a short program. So placeholders answer for plain
values, and import the modules that they replace for all others.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

SHAPES = "torch.fx.experimental.symbolic_shapes"
_SYMPY, _FUNCTIONS = "sympy", "torch.utils._sympy.functions"

# Functions of torch._prims_common that import these modules at each call.
_IMPORTERS = {
    "elementwise_dtypes": _SYMPY,
    "_is_non_overlapping_and_dense_or_false": _FUNCTIONS,
}
_replacing = threading.Lock()


class Placeholder(ModuleType):
    """Answers some names of a module; any other imports it."""

    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        super().__init__(name)
        vars(self).update(answers, __spec__=importlib.util.find_spec(name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # attributes that all modules have, such as their files
            raise AttributeError(name)
        return getattr(imported(self.__name__), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(imported(self.__name__), name, value)


def imported(name: str) -> ModuleType:
    """Return the module of this name itself."""
    with _replacing:  # one thread removes the placeholder, and none the module
        if isinstance(sys.modules.get(name), Placeholder):
            del sys.modules[name]
    return importlib.import_module(name)


def spare_imports() -> None:
    """Put placeholders in place for PyTorch's functions, unless the modules are imported."""
    if SHAPES in sys.modules:
        return
    parent, _, last = SHAPES.rpartition(".")
    importlib.import_module(f"{parent}._config")  # the module imports it, and others rely on that
    place = Placeholder(SHAPES, {name: _answer(name, plain) for name, plain in _PLAIN.items()})
    setattr(importlib.import_module(parent), last, place)
    sys.modules.setdefault(SHAPES, place)
    for name, answers in ((_SYMPY, {"Basic": Expression}), (_FUNCTIONS, {"Max": _maximum})):
        sys.modules[_alias(name)] = Placeholder(name, answers)
    common = importlib.import_module("torch._prims_common")
    for function, name in _IMPORTERS.items():
        _ask(getattr(common, function, None), name)


def _alias(name: str) -> str:
    """Return the name under which those functions import a placeholder; others get the module."""
    return "_torch_jax_" + name.replace(".", "_")


def _ask(function: Any, name: str) -> None:
    """Have a function import the placeholder wherever its code imports the module."""
    code = getattr(function, "__code__", None)
    if code is not None:
        names = tuple(_alias(name) if one == name else one for one in code.co_names)
        function.__code__ = code.replace(co_names=names)


# --- symbolic sizes: the answers of functions to plain values, or NotImplemented -----------------


def _are(kind: type, values: Any) -> bool:
    return all(type(value) is kind for value in values)


def _bool(value: Any, *_: Any) -> Any:
    return value if type(value) is bool else NotImplemented


def _int(value: Any) -> Any:
    return value if type(value) is int else NotImplemented


def _is_nested(value: Any) -> Any:
    return False if type(value) is int else NotImplemented


def _all(*values: Any) -> Any:
    return all(values) if _are(bool, values) else NotImplemented


def _any(*values: Any) -> Any:
    return any(values) if _are(bool, values) else NotImplemented


def _equal(x: Any, y: Any) -> Any:
    if isinstance(x, tuple | list) and isinstance(y, tuple | list):
        return tuple(x) == tuple(y) if _are(int, (*x, *y)) else NotImplemented
    return x == y if _are(int, (x, y)) else NotImplemented


def _unknown(*_values: Any) -> Any:
    return NotImplemented


_BOOLS = ("expect_true", "guard_bool", "guard_or_false", "guard_or_true", "guard_size_oblivious")
_PLAIN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys((*_BOOLS, "statically_known_true"), _bool),
    "guard_int": _int,
    "is_nested_int": _is_nested,
    "sym_and": _all,
    "sym_or": _any,
    "sym_eq": _equal,
    **dict.fromkeys(("has_guarding_hint", "guarding_hint_or_throw"), _unknown),  # when called
}


def _answer(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that answers where it can, and else calls the module's."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        found = NotImplemented if kwargs else plain(*args)
        return (
            getattr(imported(SHAPES), name)(*args, **kwargs) if found is NotImplemented else found
        )

    return answer


# --- sympy ----------------------------------------------------------------------------------------


class _AskSympy(type):
    def __instancecheck__(cls, value: Any) -> bool:
        kind = getattr(sys.modules.get(_SYMPY), "Basic", None)
        return kind is not None and isinstance(value, kind)


class Expression(metaclass=_AskSympy):
    """The class ``sympy.Basic`` in ``isinstance``: without sympy it has no instances."""


def _maximum(*values: Any) -> Any:
    return imported(_FUNCTIONS).Max(*values)
