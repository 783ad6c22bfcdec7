"""One line of an examination."""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """What was found, and what is wrong with it; an empty text where nothing is."""

    name: str
    found: str
    problem: str = ""
