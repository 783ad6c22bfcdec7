"""``jax.extend.core``, without ``jax.extend``.

To import that imports Pallas, which takes a tenth of a short program's start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.extend import core as core

_NAMES = """
    ClosedJaxpr Jaxpr Literal Primitive gensym jaxpr_as_fun jaxprs_in_params set_current_trace
    take_current_trace
"""


def _core() -> Any:
    private = importlib.import_module("jax._src.core")
    if all(hasattr(private, name) for name in _NAMES.split()):
        return private
    return importlib.import_module("jax.extend.core")  # another release keeps them elsewhere


if not TYPE_CHECKING:
    core = _core()


_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
}


def called_once(equation: Any) -> Any:
    """Return the closed jaxpr that an equation calls once, with its own operands; else None."""
    return equation.params.get(_CALLS.get(equation.primitive.name, ""))
