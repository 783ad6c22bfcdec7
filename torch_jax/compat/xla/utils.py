"""``torch_xla.utils.utils``: data for examples, and variables of the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def SampleGenerator(data: Any, sample_count: int) -> list[Any]:
    """Return the same data a number of times."""
    return [data] * sample_count


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """Return a variable of the environment as a type; ``"1"`` and ``"true"`` are true."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return text.lower() in ("1", "true") if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Return whether a variable of the environment has a value that means yes."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")
