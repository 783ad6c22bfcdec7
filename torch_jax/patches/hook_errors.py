"""Errors that hooks raise in a backward pass reach the caller of ``backward``.

When a hook fails, PyTorch's C++ leaves the stack with Python's error still set, and on its way out
asks the guard of the device, which is Python, for the device's type. Python must not run like that:
the process would end. So the guard takes the error away (:func:`take_pending`) and the engine,
whose own exception is empty now, raises it again. From the engine's threads it gets there in a list
that PyTorch's thread-local state carries along.
"""

from __future__ import annotations

from typing import Any

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_FIRST_USE, patch

_KEY = "torch_jax errors"


def take_pending() -> None:
    """Take the error that is set although nobody raises it, and note it for the backward pass.

    >>> take_pending()  # there is none
    """
    try:
        pytorch.raise_pending()
    except BaseException as error:
        noted = _noted()
        if noted is not None:
            noted.append(error)


def _noted() -> list[BaseException] | None:
    return pytorch.get_carried(_KEY) if pytorch.is_carried(_KEY) else None


@patch("torch.autograd.Variable._execution_engine", AT_FIRST_USE)
def _raise_noted(engine: Any) -> Any:
    """Where a hook fails, C++ asks the device's guard, in Python, with the error still set."""
    kind: Any = type(engine)

    class Engine(kind):
        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            outer = _noted()
            noted: list[BaseException] = []
            pytorch.carry(_KEY, noted)
            try:
                return super().run_backward(*args, **kwargs)
            except SystemError:  # the engine failed, and its error has been taken away
                if not noted:
                    raise
                raise noted.pop(0) from None
            finally:
                pytorch.carry(_KEY, outer)

    return Engine()
