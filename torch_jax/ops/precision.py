"""The precision of float32 products, handed to the functions of this folder while they are traced.

Who calls a function of the table says by :func:`precisions_are` what holds for the call. Only
operators with the option ``products`` are told: what they compile to is kept by precision.
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
    """Of matrix products and of convolutions, by PyTorch's names.

    ``"highest"`` is float32; ``"high"`` TF32, or sums of products of bfloat16s as exact as that;
    ``"medium"`` whatever the platform is fastest with.
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
    """Set what :func:`precision` says to functions called (or traced) inside; None: to nobody."""
    token = _current.set(None if precisions is None else Precisions(*precisions))
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Precisions:
    """What holds for the call under way.

    Raises ``LookupError`` within an operator that lacks the option ``products``.
    """
    found = _current.get()
    if found is None:
        raise LookupError(
            "an operator asks for the precision of products that is not declared to have any: "
            "give its @op the option products=True"
        )
    return found


def precision(dtype: Any, of: str = "matmul") -> lax.Precision:
    """The precision of products of ``dtype``; ``of`` is ``"matmul"`` or ``"conv"``.

    Only products of float32, and of complex numbers of such, may be less exact than they can be.

    >>> with precisions_are(Precisions("high", "highest")):
    ...     asked = precision(jnp.float32), precision(jnp.float32, "conv"), precision(jnp.float64)
    >>> [one.name for one in asked]
    ['HIGH', 'HIGHEST', 'HIGHEST']
    """
    asked = getattr(current(), of)
    return _JAX[asked] if jnp.dtype(dtype) in _FLOAT32 else lax.Precision.HIGHEST
