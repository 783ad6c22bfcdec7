"""Notes: the places that a trace met, and what became of what stood there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from torch_jax._private import functorch
from torch_jax.capture.state import new_objects
from torch_jax.capture.state.places import (
    MISSING,
    Address,
    CacheSize,
    Contents,
    DictEntry,
    Keys,
    Place,
    Progress,
    same,
)
from torch_jax.core import tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.tracers import is_traced
from torch_jax.memory.storage import is_jax_storage


class Notes:
    """What a trace met in Python's state, each place with the value that it had at first."""

    def __init__(self) -> None:
        self.places: dict[Address, Place] = {}
        self.lifted: set[tuple] = set()  # dicts (by id) and keys where numbers of the trace stand
        self.tensors: dict[int, torch.Tensor] = {}
        self.wants_gradient: dict[int, bool] = {}  # of these, by id, when they were met
        self.young: set[int] = set()  # what the run made, by id, when it is over
        self.cached: dict[int, torch.Tensor] = {}  # tensors that cached functions keep
        self.new_objects: new_objects.Instances = {}  # in the result; each call makes them anew
        # Everything that is known by its id. Python gives the id of an object that is gone to
        # another object, which would then pass for the first.
        self.kept: list[Any] = []

    def note(
        self, kind: type[Place], owner: Any, key: Any, label: str, is_read: bool = False
    ) -> Place:
        """The place of such a kind, owner and key, which is met now or was met before."""
        place = self.places.get(kind.at(owner, key))
        if place is None:
            place = kind(owner, key, label)
            if is_made_here(place.value):  # set in this trace, and perhaps for a while only
                return place
            if kind is Contents and any(map(functorch.is_wrapped, place.value)):
                return place  # a container that a transform of this trace has made for its function
            self.places[place.address] = place
            self.kept.append(owner)
        place.is_read |= is_read
        return place

    def note_new_keys(self) -> None:
        """Attributes whose computed names the function was the first to set."""
        for keys in [place for place in self.places.values() if isinstance(place, Keys)]:
            for name in set(keys.now()).difference(keys.value):
                new = DictEntry(keys.owner, name, f"{keys.label}.{name}", MISSING)
                self.places.setdefault(new.address, new)

    def note_tensor(self, tensor: torch.Tensor) -> None:
        """A tensor stands in a place, and will be the same at the next call."""
        if id(tensor) not in self.tensors:
            self.tensors[id(tensor)] = tensor
            self.wants_gradient[id(tensor)] = tensor.requires_grad

    def regraded(self) -> list[torch.Tensor]:
        """Tensors that were there before, whose ``requires_grad`` the function has set."""
        wanted = self.wants_gradient.items()
        return [self.tensors[key] for key, old in wanted if self.tensors[key].requires_grad != old]

    def forget_cached(self) -> bool:
        """Empty the cached functions that were met, which may keep numbers of this trace."""
        caches = [p.owner for p in self.places.values() if isinstance(p, CacheSize)]
        for cached in caches:
            cached.cache_clear()
        return bool(caches)

    # --- what the function changed ----------------------------------------------------------------

    def effects(self) -> Iterator[tuple[Place, Any]]:
        """The places that the function changed, with what stands there now."""
        for place in self.places.values():
            now = place.now()
            if now is not place.value and place.can_be_effect and not same(now, place.value):
                yield place, now

    def undo(self) -> None:
        """Put back what the function changed."""
        for place, _ in list(self.effects()):
            place.put(place.value)
        for tensor in self.regraded():
            if tensor.is_leaf:
                tensor.requires_grad_(self.wants_gradient[id(tensor)])

    # --- letting go -------------------------------------------------------------------------------

    def release(self, result: list[Any]) -> None:
        """Let go of everything that was only kept for as long as the function ran.

        Places in objects that the function made, and that nothing but its result holds, go too.
        ``result`` is a list of what the function returned, and the only holder of that besides
        the function's own objects: references are counted here.
        """
        self.kept.clear()
        young = self.young = new_objects.objects_since()
        self.places = new_objects.met_before(self.places, young)
        self._drop_containers(result)
        while self._drop_garbage():
            pass
        self.places, self.new_objects = new_objects.split(self.places, result[0], young)
        self.refuse_progress()

    def let_go(self) -> None:
        """Let go of everything."""
        self.places.clear()
        self.tensors.clear()
        self.cached.clear()
        self.kept.clear()

    def _drop_containers(self, result: list[Any]) -> None:
        """Forget containers of the result that nothing else holds: the function made them."""
        found: dict[int, Any] = {}
        uses: Counter[int] = Counter()  # by other containers of the result
        queue, inner = list(result), list(result)
        while queue:
            value = queue.pop()
            if isinstance(value, dict | list | tuple) and id(value) not in found:
                found[id(value)] = value
                inner = list(value.values() if isinstance(value, dict) else value)
                uses.update(map(id, inner))
                queue += inner
                attributes = vars(value).values() if hasattr(value, "__dict__") else ()
                uses.update(map(id, attributes))
        del value, queue, inner  # each may hold one of them still
        owners = Counter(id(place.owner) for place in self.places.values())
        for key in list(found):
            # a container is held by ``found`` and by the argument of getrefcount, and what the
            # function returned by the list ``result`` too
            known = 2 + uses[key] + owners[key] + (key == id(result[0]))
            if sys.getrefcount(found[key]) <= known:
                mine = {key, id(getattr(found[key], "__dict__", None))}
                self.places = {a: p for a, p in self.places.items() if a[1] not in mine}

    def _drop_garbage(self) -> bool:
        """Forget places of owners that only these places hold; whether there were any."""
        before = len(self.places)
        owned: dict[int, list[Place]] = {}
        for place in self.places.values():
            owned.setdefault(id(place.owner), []).append(place)
        for places in owned.values():
            owner = places[0].owner
            # held by each of its places, by the name above and by the argument of getrefcount
            if sys.getrefcount(owner) <= len(places) + 2:
                for place in places:
                    del self.places[place.address]
        return len(self.places) < before

    def refuse_progress(self) -> None:
        """Raise where the function moved an iterator on that was there before."""
        for place in self.places.values():
            if isinstance(place, Progress) and place.now() != place.value:
                raise tracers.NotTraceableError(
                    f"{place.label}, a {type(place.owner).__name__}, is moved on inside a function "
                    "under torch_jax.jit, which a compiled call cannot repeat. Take its next value "
                    "outside and pass it as an argument."
                )


def is_made_here(value: Any) -> bool:
    """Whether a value is a device tensor that the trace made."""
    if not isinstance(value, torch.Tensor) or value.device.type != "jax":
        return False
    try:
        memory: Any = value.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a wrapper, as under vmap
        return True
    except ValueError:  # a parameter of a lazy module, which has none yet
        return False
    capture = ACTIVE.tracer
    if capture is None or not is_jax_storage(memory):
        return capture is not None
    return is_traced(memory.array) and capture.input_of(memory) is None
