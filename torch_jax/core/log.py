"""The logger ``torch_jax``: observed and compiled calls, with reasons (setting ``log``)."""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import Any

from torch_jax.budgets import FORMS_BEFORE_WARNING
from torch_jax.core import errors, tracers
from torch_jax.core.active import ACTIVE

LOGGER = logging.getLogger("torch_jax")


def follow(setting: str) -> None:
    """Follow the setting ``log``; a program that has no handler gets one that prints."""
    level = getattr(logging, setting.upper())
    LOGGER.setLevel(level)
    if level < logging.WARNING and not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        LOGGER.addHandler(handler)


_forms: Counter[tuple[str, str]] = Counter()  # compilations of an operator at a line
_loops: dict[str, str] = {}  # the messages about functions whose lines keep compiling


def compiles(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Log an eager operator about to be compiled; warn once of a line that keeps compiling."""
    if ACTIVE.tracer is not None:  # traced operators are compiled with the whole program
        return
    at = op.name(), tracers.user_line()
    _forms[at] += 1
    if _forms[at] == FORMS_BEFORE_WARNING:
        function = re.sub(r":\d+, ", ", ", at[1])
        if function not in _loops:
            _loops[function] = (
                f"{at[0]} was compiled for {FORMS_BEFORE_WARNING} different shapes or arguments at "
                f"{at[1]}: each new one costs some 20 ms, and other operators there may be as "
                "many. Pad to fewer sizes, or put the loop's body into a function under "
                "torch_jax.jit(dynamic=...)."
            )
            LOGGER.warning(_loops[function])
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info("compiling %s (%s)", errors.describe_call(op, args, kwargs), at[1])


def loops() -> list[str]:
    """Return the messages about functions that keep compiling, for reports."""
    return list(_loops.values())
