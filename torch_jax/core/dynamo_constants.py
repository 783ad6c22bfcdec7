"""Functions that Dynamo calls when it traces, and again before each call of its code.

The settings of a thread or a task are context variables, which Dynamo cannot read. Dynamo takes the
answer of a function registered here for a constant, and compiles once more where the answer has
changed. The functions take no arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_jax._private import dynamo

_known: dict[Callable[[], Any], bool] = {}  # and whether the answer may change


def question(function: Callable[[], Any], may_change: bool = True) -> Callable[[], Any]:
    """Make a function without arguments, of this thread's or task's state, known to Dynamo."""
    _known[function] = may_change
    dynamo.fold_in_graphs(function, may_change)
    return function


def constant(function: Callable[[], Any]) -> Callable[[], Any]:
    """Make a function without arguments, whose answer does not change, known to Dynamo."""
    return question(function, may_change=False)


@constant
def traced_module() -> str:
    """Return the module whose code Dynamo is tracing, which calls into this package."""
    return next((n for n in dynamo.traced_modules() if not n.startswith("torch_jax.")), "")


def tell_dynamo() -> None:
    """Make the functions known, now that Dynamo is imported."""
    for function, may_change in _known.items():
        dynamo.fold_in_graphs(function, may_change)
