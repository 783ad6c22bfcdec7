"""Objects that a function makes and returns, such as a cache of keys and values.

A compiled call makes them anew: an object of the same class, without its ``__init__``, with the
attributes that the traced one had in the end. Objects that the function also leaves somewhere are
not meant: these are the same at every call, and what changed of them is an effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_jax.capture.state.places import Item

Instances = dict[int, Any]

_PLACES = ("dict", "attr", "cell", "contents")  # where the function may have left an object


def split(
    items: dict[tuple, Item], result: Any, young: set[int]
) -> tuple[dict[tuple, Item], Instances]:
    """The plain objects, by id, that are ``young`` and to which only the result leads.

    And before these, the items that are not about them.
    """
    found = _reachable([result], young)
    own = _owners(found)
    left = [i.now() for i in items.values() if id(i.owner) not in own and i.kind in _PLACES]
    kept = _reachable(left, found.keys())
    made = {key: value for key, value in found.items() if key not in kept}
    own = _owners(made)
    return {place: item for place, item in items.items() if place[1] not in own}, made


def _owners(objects: Instances) -> set[int]:
    return objects.keys() | {id(vars(one)) for one in objects.values()}


def _reachable(values: list[Any], among: Any) -> Instances:
    found: Instances = {}
    queue = values
    while queue:
        for leaf in pytree.tree_leaves(queue.pop()):
            if id(leaf) in among and id(leaf) not in found and _is_plain(leaf):
                found[id(leaf)] = leaf
                queue.append(dict(vars(leaf)))
    return found


def _is_plain(value: Any) -> bool:
    """Whether all that an object is stands in its ``__dict__``."""
    kind = type(value)
    if isinstance(value, torch.Tensor | torch.nn.Module | type) or not hasattr(value, "__dict__"):
        return False
    slots = [name for base in kind.__mro__ for name in vars(base).get("__slots__", ())]
    hooked = ("__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")
    ordinary = all(getattr(kind, name, None) is getattr(object, name, None) for name in hooked)
    return kind.__new__ is object.__new__ and ordinary and not slots
