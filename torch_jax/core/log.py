"""The logger ``torch_jax``: what is traced and compiled, and why (setting ``log``).

>>> import logging
>>> logging.getLogger("torch_jax") is LOGGER
True
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from torch_jax import config
from torch_jax.core import errors, tracers
from torch_jax.core.active import ACTIVE

LOGGER = logging.getLogger("torch_jax")


def install() -> None:
    """Follow the setting ``log``; a program that has no handler gets one that prints."""
    level = getattr(logging, config.get("log").upper())
    LOGGER.setLevel(level)
    if level < logging.WARNING and not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        LOGGER.addHandler(handler)


_MANY = 32
_forms: Counter[tuple[str, str]] = Counter()  # compilations of an operator at a line


def compiles(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """An eager operator is about to be compiled; a line that goes on compiling is named once."""
    if ACTIVE.tracer is not None:  # what is traced is compiled with the whole program
        return
    at = op.name(), tracers.user_line()
    _forms[at] += 1
    if _forms[at] == _MANY:
        LOGGER.warning(looping(*at))
    if LOGGER.isEnabledFor(logging.INFO):
        call = errors.describe_call(op, args, kwargs)
        LOGGER.info("compiling %s (%s)", call, at[1])


def looping(name: str, line: str) -> str:
    """What is said of a line at which an operator is compiled again and again."""
    return (
        f"{name} was compiled for {_MANY} different shapes or arguments at {line}: each new one "
        "costs some 20 ms. Pad to fewer sizes, or put the loop's body into a function under "
        "torch_jax.jit(dynamic=...)."
    )


def loops() -> list[str]:
    """The same of every such line so far, for reports."""
    return [looping(*at) for at, count in _forms.items() if count >= _MANY]


def traces(name: str, reason: str | None, seconds: float) -> None:
    """A function under ``torch_jax.jit`` was traced, for the first time or for a reason."""
    LOGGER.info("traced %s in %.2f s: %s", name, seconds, reason or "its first call")
