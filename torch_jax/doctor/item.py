"""One line of an examination."""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """A finding, and its problem; an empty text without one."""

    name: str
    found: str
    problem: str = ""
