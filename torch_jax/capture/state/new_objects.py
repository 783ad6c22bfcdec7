"""Objects that a function makes: which these are, and how those that it returns are made again.

A compiled call makes an object of the result, such as a cache of keys and values, anew: one of the
same class, without its ``__init__``, with the attributes that the traced one had in the end.
Objects that the function also leaves somewhere are not meant: these are the same at every call, and
what changed of them is an effect.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_jax.capture.state.places import Address, Contents, Place
from torch_jax.capture.state.stand_ins import is_container

Instances = dict[int, Any]

# A probe that is older than any trace: if the collector counts it as young all the same, this
# Python has no generations, and the collector cannot tell new objects from old ones.
_OLD: list[None] = []


def age_existing_objects() -> None:
    """Move all that exists out of the garbage collector's youngest generation.

    A collection of that generation does so. While a function is traced nothing is collected, so
    that in the end the youngest generation is what was made since.
    """
    gc.collect(0)


def objects_since() -> set[int]:
    """The ids of all objects made since :func:`age_existing_objects`, while nothing is collected.

    Of dicts the collector cannot tell: it comes to know one when it is first filled, and that of
    an object when it is first asked for. One that has no generations can tell of nothing.

    The list holds, for a moment, tuples that other threads are still making: CPython tracks a tuple
    from its first element on, and ``tuple(generator)`` raises ``SystemError`` where it has to grow
    one that somebody else refers to. Nothing else knows of all new objects: there are no hooks for
    allocation, types may not be weakly referenced, and to look through what the traced function
    left behind finds objects but not their age. So the list comes and goes within one call of C,
    during which no other thread runs: when one does, its tuples are its own again.
    """
    young: set[int] = set()
    objects = itertools.chain.from_iterable(itertools.starmap(gc.get_objects, [(0,)]))
    young.update(map(id, objects))  # here the list is made, and freed
    return set() if id(_OLD) in young else young


def met_before(places: dict[Address, Place], young: set[int]) -> dict[Address, Place]:
    """Places without the contents of what is ``young``: a call makes it anew where it stands."""
    contents = [place for place in places.values() if isinstance(place, Contents)]
    made = {p.address for p in contents if id(p.owner) in young and _is_made_anew(p.owner)}
    return {address: place for address, place in places.items() if address not in made}


def _is_made_anew(owner: Any) -> bool:
    return type(owner) is not dict and is_container(owner) and not pytree.tree_is_leaf(owner)


def split(
    places: dict[Address, Place], result: Any, young: set[int]
) -> tuple[dict[Address, Place], Instances]:
    """The plain objects, by id, that are ``young`` and to which only the result leads.

    And before these, the places that are not in them.
    """
    found = _reachable([result], young)
    own = _owners(found)
    outside = [place for place in places.values() if id(place.owner) not in own]
    left = [value for place in outside for value in place.objects(place.now())]
    kept = _reachable(left, found.keys())
    made = {key: value for key, value in found.items() if key not in kept}
    own = _owners(made)
    return {a: place for a, place in places.items() if a[1] not in own}, made


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
