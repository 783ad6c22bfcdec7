"""The precision of float32 products, handed to the functions of this folder while they are traced.

The caller of a function of the table sets the precision of the call by :func:`precisions_are`. Only
operators with the option ``products`` see it: their programs are stored by precision.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax


class Precisions(NamedTuple):
    """Precisions of matrix products and of convolutions, by PyTorch's names.

    ``"highest"`` is float32; ``"high"`` TF32, or sums of products of bfloat16s as exact as that;
    ``"medium"`` the fastest form of the platform.
    """

    matmul: str
    conv: str


HIGHEST = Precisions("highest", "highest")
_JAX = {
    "highest": lax.Precision.HIGHEST,
    "high": lax.Precision.HIGH,
    "medium": lax.Precision.DEFAULT,
}
_FLOAT32 = (np.dtype(np.float32), np.dtype(np.complex64))
_current: contextvars.ContextVar[Precisions | None] = contextvars.ContextVar(
    "precisions", default=HIGHEST
)


@contextlib.contextmanager
def precisions_are(precisions: tuple[str, str] | None) -> Iterator[None]:
    """Set :func:`precision` for functions called (or traced) inside; None: no precision."""
    token = _current.set(None if precisions is None else Precisions(*precisions))
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Precisions:
    """Return the precisions of the call under way, of an operator with the option ``products``."""
    if (found := _current.get()) is None:
        raise LookupError(
            "an operator asks for the precision of products that is not declared to have any: "
            "give its @op the option products=True"
        )
    return found


def precision(dtype: Any, of: str = "matmul") -> lax.Precision:
    """Return the precision of products of ``dtype``; ``of`` is ``"matmul"`` or ``"conv"``.

    Only products of float32, and of complex numbers of such, may be less exact than they can be.

    >>> with precisions_are(Precisions("high", "highest")):
    ...     asked = precision(jnp.float32), precision(jnp.float32, "conv"), precision(jnp.float64)
    >>> [one.name for one in asked]
    ['HIGH', 'HIGHEST', 'HIGHEST']
    """
    return _JAX[getattr(current(), of)] if jnp.dtype(dtype) in _FLOAT32 else lax.Precision.HIGHEST
