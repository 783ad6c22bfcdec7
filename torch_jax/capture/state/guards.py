"""Guards: what must be as it was for a compiled program to be run again.

Everything is compared by identity first, in a few passes of C, since nearly always nothing changed.
Only where something is another object is it looked at more closely: an equal number passes, and so
does another tensor of the same form, which then takes the place of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import attrgetter, is_
from types import FunctionType
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.capture.host.tape import Changed
from torch_jax.capture.state.changing_numbers import elements, varies
from torch_jax.capture.state.places import KINDS, MISSING, Item, on_class, read_place, same, slot
from torch_jax.capture.state.stand_ins import StandIns, is_container
from torch_jax.core import errors

_storage_of = torch.Tensor.untyped_storage
_cell_contents = attrgetter("cell_contents")
_gradient: Callable[[torch.Tensor], Any] = attrgetter("grad")


class Guards:
    """The Python state and the tensors that one trace relied on."""

    def __init__(
        self,
        items: Iterable[Item],
        gradients: dict[int, tuple[torch.Tensor, Any]],
        irreplaceable: Iterable[torch.Tensor],
        fixed: Iterable[Any] = (),
    ):
        """``items`` were read; of ``gradients``, each tensor's ``.grad`` was as given.

        No other tensor may stand for those that are irreplaceable, such as an optimizer's, and no
        other container for those that are fixed: what a call returns or puts somewhere.
        """
        self._fixed = set(map(id, fixed))
        # where one attribute of an object changed it is named, before all of the object's are
        self.items = sorted(items, key=lambda item: item.kind == "contents")
        self.gradients = list(gradients.values())
        self.irreplaceable = {id(tensor): tensor for tensor in irreplaceable}
        self._take(self._arrange())
        self._expected = list(map(_form, self.tensors))

    def _arrange(self) -> list[torch.Tensor]:
        """Lay everything out in parallel lists, for :meth:`hold`; the tensors among it."""
        by_kind: dict[str, list[Item]] = {kind: [] for kind in KINDS}
        for item in self.items:
            by_kind[item.kind].append(item)
        present = [i for i in by_kind["dict"] if i.value is not MISSING]
        self._owners, self._keys, self._values = _columns(present)
        absent = [i for i in by_kind["dict"] if i.value is MISSING]
        self._absent, self._absent_keys, _ = _columns(absent)
        self._classes, self._class_names, self._class_values = _columns(by_kind["class"])
        self._instances, _, self._types = _columns(by_kind["type"])
        plain = (torch.Tensor, FunctionType)  # that have the attribute for sure
        slots = [i for i in by_kind["attr"] if not isinstance(i.owner, plain)]
        self._objects, self._names, self._attributes = _columns(slots)
        self._sure = _by_name([i for i in by_kind["attr"] if isinstance(i.owner, plain)])
        self._cells = [i.owner for i in by_kind["cell"]]
        self._cell_values = [i.value for i in by_kind["cell"]]
        self._containers: list[Any] = []
        self._lengths: list[int] = []
        self._full: list[Any] = []
        for item in by_kind["contents"]:
            views = _views(item.owner)
            self._containers.append(item.owner)
            self._lengths.append(len(item.value) // len(views))
            if item.value:
                self._full += views
        self._contents = [v for i in by_kind["contents"] for v in i.value]
        self._others = [*by_kind["bytes"], *by_kind["cache"], *by_kind["keys"]]
        kinds = ("weak", "context", "number", "element")
        self._referents = [item for kind in kinds for item in by_kind[kind]]
        self._leaves = [tensor for tensor, _ in self.gradients]
        self._leaf_gradients = [gradient for _, gradient in self.gradients]
        sure = chain.from_iterable(values for _, _, values in self._sure)
        held = chain(self._values, self._attributes, sure, self._cell_values, self._contents)
        found = {id(v): v for v in (*held, *self._leaf_gradients, *self.irreplaceable.values())}
        return [v for v in found.values() if isinstance(v, torch.Tensor)]

    def _take(self, tensors: list[torch.Tensor]) -> None:
        """Guard these tensors; their order is what others know them by."""
        self.tensors, self.storages = tensors, list(map(_storage_of, tensors))
        self._forms = pytorch.tensor_guards(tensors)

    def hold(self) -> bool:
        """Whether everything is the very same object as before."""
        return (
            all(map(is_, map(dict.get, self._owners, self._keys), self._values))
            and all(map(is_, map(_gradient, self._leaves), self._leaf_gradients))
            and all(map(is_, map(_storage_of, self.tensors), self.storages))
            and self._forms(*self.tensors)
            and list(map(len, self._containers)) == self._lengths
            and all(map(is_, chain.from_iterable(self._full), self._contents))
            and all(all(map(is_, map(g, owners), values)) for g, owners, values in self._sure)
            and all(map(is_, map(_cell_contents, self._cells), self._cell_values))
            and all(map(is_, map(slot, self._objects, self._names), self._attributes))
            and not any(map(dict.__contains__, self._absent, self._absent_keys))
            and all(map(is_, map(type, self._instances), self._types))
            and all(map(is_, map(on_class, self._classes, self._class_names), self._class_values))
            and all(i.now() == i.value for i in self._others)
            and all(i.now() is i.value for i in self._referents)
        )

    def settle(self) -> bool:
        """Look closely; take over what may stand for the old.

        Returns whether any tensor or storage is another one. Raises :class:`Changed` where
        something may not.
        """
        replaced: dict[int, torch.Tensor] = {}
        stand_ins = StandIns(self.items, self._fixed)
        met = [(item.value, item.now()) for item in self.items if is_container(item.value)]
        for old, new in sorted(met, key=lambda pair: pair[0] is not pair[1]):
            stand_ins.meet(old, new)
        values = [self._now(item, stand_ins) for item in self.items]
        try:
            for item, now in zip(self.items, values, strict=True):
                self._compare(item.label, item.value, now, replaced, stand_ins)
        except Changed as changed:
            raise Changed(str(changed), self.varying()) from None
        gradients = [leaf.grad for leaf, _ in self.gradients]
        for (leaf, was), now in zip(self.gradients, gradients, strict=True):
            label = f"the .grad of a {errors.describe(leaf)}"
            self._compare(label, was, now, replaced, stand_ins)
        tensors = [replaced.get(id(tensor), tensor) for tensor in self.tensors]
        for tensor, form in zip(tensors, self._expected, strict=True):
            if _form(tensor) != form:
                raise Changed(f"a tensor was {_show(form)}, now it is {_show(_form(tensor))}")
        storages = list(map(_storage_of, tensors))
        if _aliases(storages) != _aliases(self.storages):
            raise Changed("tensors that shared memory no longer do, or others do now")
        stand_ins.take_over()
        for item, now in zip(self.items, values, strict=True):
            item.value = now
        self.gradients = [(leaf, g) for (leaf, _), g in zip(self.gradients, gradients, strict=True)]
        old = self.storages
        self._arrange()
        self._take(tensors)
        return not all(map(is_, old, storages))

    def varying(self) -> list[Item]:
        """Places of numbers that are others now."""
        contents = [elements(item) for item in self.items if item.kind == "contents"]
        places = chain(self.items, chain.from_iterable(contents))
        return [item for item in places if varies(item, item.now())]

    @staticmethod
    def _now(item: Item, stand_ins: StandIns) -> Any:
        if item.kind == "contents":
            return read_place("contents", stand_ins.of(item), "")
        return item.now()

    def _compare(
        self,
        label: str,
        old: Any,
        new: Any,
        replaced: dict[int, torch.Tensor],
        stand_ins: StandIns,
    ) -> None:
        """Note in ``replaced`` which tensors stand for others; raise where values differ."""
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            if replaced.setdefault(id(old), new) is not new:
                raise Changed(f"{label} was the same tensor as another one, now it is not")
            if old is not new and id(old) in self.irreplaceable:
                raise Changed(
                    f"{label} is another tensor, and an optimizer or a gradient belongs to the old"
                )
        elif isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
            for one, other in zip(old, new, strict=True):
                self._compare(label, one, other, replaced, stand_ins)
        elif not (same(old, new) or stand_ins.are(old, new)):
            raise Changed(f"{label} was {show(old)}, now it is {show(new)}")


def _by_name(items: list[Item]) -> list[tuple[Any, list, list]]:
    """For each attribute its getter, the owners, and what they have."""
    names = dict.fromkeys(i.key for i in items)
    columns = ((name, _columns([i for i in items if i.key == name])) for name in names)
    return [(attrgetter(name), owners, values) for name, (owners, _, values) in columns]


def _columns(items: list[Item]) -> tuple[list, list, list]:
    return [i.owner for i in items], [i.key for i in items], [i.value for i in items]


def _views(owner: Any) -> tuple:
    return (owner.keys(), owner.values()) if isinstance(owner, Mapping) else (owner,)


def show(value: Any) -> str:
    """A value as a reason names it, short."""
    if isinstance(value, torch.Tensor):
        return errors.describe(value)
    if isinstance(value, tuple) and len(value) > 6:
        return f"{len(value)} elements"
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))})"
    if isinstance(value, dict | list | set):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _form(tensor: torch.Tensor) -> tuple:
    return (
        tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device,
        tensor.requires_grad, type(tensor), tensor.is_conj(), tensor.is_neg(),
    )  # fmt: skip


def _show(form: tuple) -> str:
    size, stride, offset, dtype, device, requires_grad, *_ = form
    return (
        f"{dtype}{list(size)} (strides {list(stride)}, offset {offset}) on {device}, "
        f"requires_grad={requires_grad}"
    )


def _aliases(storages: list[Any]) -> list[int]:
    """For each storage, where it stands first."""
    first: dict[int, int] = {}
    return [first.setdefault(id(s), index) for index, s in enumerate(storages)]
