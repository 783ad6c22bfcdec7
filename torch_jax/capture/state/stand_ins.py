"""Lists, dicts and sets that a function makes anew at each call: ``self.cache = [None] * n``.

A trace meets one such object and its program leaves another. So a container may stand for one that
was met, if it is of the same type and holds what that held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from torch_jax.capture.state.places import Contents, Place

KINDS = (list, dict, set, deque)


def is_container(value: Any) -> bool:
    """Whether a value is a plain list, dict, set or deque, or of a class of these."""
    return isinstance(value, KINDS)


class StandIns:
    """Containers in the place of those that a trace met, found from where these stood."""

    def __init__(self, places: Iterable[Place], fixed: set[int]):
        """``places`` were read; for containers that are ``fixed`` (by id) nothing stands in."""
        self._contents = {id(p.owner): p for p in places if isinstance(p, Contents)}
        self._fixed = fixed
        self._new: dict[int, Any] = {}
        self._taken: dict[int, int] = {}

    def meet(self, old: Any, new: Any) -> None:
        """Let ``new``, which stands where ``old`` was met, and what it holds stand in for it.

        Not where one container became two, or two became one.
        """
        if old is not new and not self._may(old, new):
            return
        if self._new.get(id(old), new) is not new or self._taken.get(id(new), id(old)) != id(old):
            return
        self._new[id(old)], self._taken[id(new)] = new, id(old)
        if old is not new:
            inner = self._contents[id(old)].value
            for one, other in zip(inner, Contents.read(new, ""), strict=False):
                if is_container(one):
                    self.meet(one, other)

    def _may(self, old: Any, new: Any) -> bool:
        fixed = id(old) in self._fixed or id(old) not in self._contents
        return is_container(old) and type(old) is type(new) and not fixed

    def are(self, old: Any, new: Any) -> bool:
        """Whether ``new`` stands for ``old``."""
        return id(old) in self._new and self._new[id(old)] is new

    def now(self, place: Place) -> Any:
        """What stands at a place now, which may be the contents of a container that stands in."""
        if isinstance(place, Contents):
            return place.read(self._owner(place), place.key)
        return place.now()

    def _owner(self, contents: Contents) -> Any:
        return self._new.get(id(contents.owner), contents.owner)

    def take_over(self) -> None:
        """Make the places be about the containers that stand in."""
        for contents in self._contents.values():
            contents.owner = self._owner(contents)
