"""The logger ``torch_jax``: what is traced and compiled, and why (setting ``log``).

>>> import logging
>>> logging.getLogger("torch_jax") is LOGGER
True
"""

from __future__ import annotations

import logging
from typing import Any

from torch_jax import config
from torch_jax.core import errors, tracers

LOGGER = logging.getLogger("torch_jax")


def install() -> None:
    """Follow the setting ``log``; a program that has no handler gets one that prints."""
    level = getattr(logging, config.get("log").upper())
    LOGGER.setLevel(level)
    if level < logging.WARNING and not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        LOGGER.addHandler(handler)


def compiles(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """An eager operator is about to be compiled."""
    if LOGGER.isEnabledFor(logging.INFO):
        call = errors.describe_call(op, args, kwargs)
        LOGGER.info("compiling %s (%s)", call, tracers.user_line())


def traces(name: str, reason: str | None, seconds: float) -> None:
    """A function under ``torch_jax.jit`` was traced, for the first time or for a reason."""
    LOGGER.info("traced %s in %.2f s: %s", name, seconds, reason or "its first call")
