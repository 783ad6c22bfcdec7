"""Lists, dicts and sets that a function makes anew at each call: ``self.cache = [None] * n``.

A trace meets one such object and its program leaves another. So a container may stand for one that
was met, if it is of the same type and holds what that held.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable
from typing import Any

from torch.utils import _pytree as pytree

from torch_jax.capture.state.places import Item, read_place

KINDS = (list, dict, set, deque)


_old: list[None] = []  # one that is older than any trace


def settle_old() -> None:
    """Move what exists out of the collector's youngest generation; nothing is collected later."""
    gc.collect(0)


def made_since() -> set[int]:
    """The ids of all objects made since :func:`settle_old`, while nothing is collected.

    Of dicts the collector cannot tell: it comes to know one when it is first filled, and that of
    an object when it is first asked for. One that has no generations can tell of nothing.
    """
    young = set(map(id, gc.get_objects(generation=0)))
    return set() if id(_old) in young else young


def met_before(items: dict[tuple, Item], young: set[int]) -> dict[tuple, Item]:
    """Items without contents of what is ``young``: where it stands, a call makes it anew."""
    made = {p for p, i in items.items() if p[1] in young and _is_made_anew(i.owner)}
    return {p: i for p, i in items.items() if i.kind != "contents" or p not in made}


def _is_made_anew(owner: Any) -> bool:
    return type(owner) is not dict and is_container(owner) and not pytree.tree_is_leaf(owner)


def is_container(value: Any) -> bool:
    """Whether a value is a plain list, dict, set or deque, or of a class of these."""
    return isinstance(value, KINDS)


class StandIns:
    """Containers in the place of those that a trace met, found from where these stood."""

    def __init__(self, items: Iterable[Item], fixed: set[int]):
        """``items`` were read; for containers that are ``fixed`` (by id) nothing stands in."""
        self._contents = {id(i.owner): i for i in items if i.kind == "contents"}
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
            for one, other in zip(inner, read_place("contents", new, ""), strict=False):
                if is_container(one):
                    self.meet(one, other)

    def _may(self, old: Any, new: Any) -> bool:
        fixed = id(old) in self._fixed or id(old) not in self._contents
        return is_container(old) and type(old) is type(new) and not fixed

    def are(self, old: Any, new: Any) -> bool:
        """Whether ``new`` stands for ``old``."""
        return id(old) in self._new and self._new[id(old)] is new

    def of(self, item: Item) -> Any:
        """The container that an item of kind ``contents`` is about now."""
        return self._new.get(id(item.owner), item.owner)

    def take_over(self) -> None:
        """Make the items be about the containers that stand in."""
        for item in self._contents.values():
            item.owner = self.of(item)
