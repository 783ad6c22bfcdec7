"""Questions that Dynamo answers when it traces, and asks again before each call of what it made.

What is in force for a thread or a task stands in context variables, through which Dynamo cannot
look. Of a function without arguments that is made known here it takes the answer for a constant,
and compiles once more where the answer is another.
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
    """The module whose code Dynamo is tracing, which calls into this package."""
    return next((n for n in dynamo.traced_modules() if not n.startswith("torch_jax.")), "")


def tell_dynamo() -> None:
    """Make them known, now that Dynamo is imported."""
    for function in _questions:
        dynamo.fold_in_graphs(function)
    for function in _constants:
        dynamo.fold_in_graphs(function, guarded=False)
