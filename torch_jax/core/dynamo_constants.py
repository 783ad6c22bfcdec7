"""Functions that Dynamo calls when it traces, and again before each call of its code.

The settings of a thread or a task are context variables, which Dynamo cannot read. Dynamo takes the
answer of a function registered here for a constant, and compiles once more where the answer has
changed. The functions take no arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_jax._private import dynamo

_questions: list[Callable[[], Any]] = []
_constants: list[Callable[[], Any]] = []


def question(function: Callable[[], Any]) -> Callable[[], Any]:
    """Make a function without arguments, of this thread's or task's state, known to Dynamo."""
    _questions.append(function)
    dynamo.fold_in_graphs(function)
    return function


def constant(function: Callable[[], Any]) -> Callable[[], Any]:
    """Make a function without arguments, whose answer does not change, known to Dynamo."""
    _constants.append(function)
    dynamo.fold_in_graphs(function, guarded=False)
    return function


@constant
def traced_module() -> str:
    """Return the module whose code Dynamo is tracing, which calls into this package."""
    return next((n for n in dynamo.traced_modules() if not n.startswith("torch_jax.")), "")


def tell_dynamo() -> None:
    """Make the functions known, now that Dynamo is imported."""
    for function in _questions:
        dynamo.fold_in_graphs(function)
    for function in _constants:
        dynamo.fold_in_graphs(function, guarded=False)
