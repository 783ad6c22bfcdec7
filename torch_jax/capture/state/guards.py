"""Guards: what must be as it was for a compiled program to be run again.

Everything is compared by identity first, in a few passes of C, since nearly always nothing changed.
Only where something is another object is it looked at more closely: an equal number passes, and so
does another tensor of the same form, which then takes the place of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, filterfalse
from operator import attrgetter, is_
from typing import Any

import torch

from torch_jax._private import dynamo
from torch_jax.capture.host.tape import Changed
from torch_jax.capture.state.changing_numbers import varies
from torch_jax.capture.state.places import Check, Contents, Place, same
from torch_jax.capture.state.stand_ins import StandIns, is_container
from torch_jax.core import errors
from torch_jax.memory.storage import held_by, is_jax, is_whole

_storage_of = torch.Tensor.untyped_storage
_offset_of = torch.Tensor.storage_offset
_gradient: Callable[[torch.Tensor], Any] = attrgetter("grad")


class Guards:
    """The Python state and the tensors that one trace relied on.

    ``tensors`` are all that were met, and ``storages`` their memory; others know them by index.
    """

    def __init__(
        self,
        places: Iterable[Place],
        gradients: dict[int, tuple[torch.Tensor, Any]],
        irreplaceable: Iterable[torch.Tensor],
        fixed: Iterable[Any] = (),
    ):
        """``places`` were read; of ``gradients``, each tensor's ``.grad`` was as given.

        No other tensor may stand for those that are irreplaceable, such as an optimizer's, and no
        other container for those that are fixed: what a call returns or puts somewhere.
        """
        self._fixed = set(map(id, fixed))
        # where one attribute of an object changed it is named, before all of the object's are
        self.places = sorted(places, key=lambda place: isinstance(place, Contents))
        self.gradients = list(gradients.values())
        self.irreplaceable = {id(tensor): tensor for tensor in irreplaceable}
        self._expect(self._tensors_met())
        self._forms = list(map(_form, self.tensors))

    def _tensors_met(self) -> list[torch.Tensor]:
        objects = chain.from_iterable(place.objects(place.value) for place in self.places)
        standing = chain.from_iterable(map(_with_elements, objects))
        gradients = [gradient for _, gradient in self.gradients]
        met = {id(v): v for v in (*standing, *gradients, *self.irreplaceable.values())}
        return [value for value in met.values() if isinstance(value, torch.Tensor)]

    def _expect(self, tensors: list[torch.Tensor]) -> None:
        """Take these tensors, and what the places and gradients are now, for what must be."""
        self.tensors, self.storages = tensors, list(map(_storage_of, tensors))
        by_kind: dict[type[Place], list[Place]] = {}
        for place in self.places:
            by_kind.setdefault(type(place), []).append(place)
        self._checks: list[Check] = self._checks_of_tensors()
        for kind, places in by_kind.items():
            self._checks += kind.checks(places)

    def _checks_of_tensors(self) -> list[Check]:
        tensors, storages = self.tensors, self.storages
        have_forms = dynamo.tensor_guards(tensors)
        leaves = [tensor for tensor, _ in self.gradients]
        gradients = [gradient for _, gradient in self.gradients]
        checks = [
            lambda: all(map(is_, map(_gradient, leaves), gradients)),
            lambda: all(map(is_, map(_storage_of, tensors), storages)),
            lambda: have_forms(*tensors),
        ]
        # forms leave the offset out, which only what shows a part of its memory could change
        parts = list(filterfalse(_fills_memory, tensors))
        offsets = list(map(_offset_of, parts))
        if parts:
            checks.append(lambda: list(map(_offset_of, parts)) == offsets)
        return checks

    def hold(self) -> bool:
        """Whether everything is the very same object as before."""
        for check in self._checks:  # a loop, since a generator for all() costs more than a check
            if not check():
                return False
        return True

    def recheck(self) -> bool:
        """Look closely; take over what may stand for the old.

        Returns whether any tensor or storage is another one. Raises :class:`Changed` where
        something may not.
        """
        stand_ins = self._stand_ins()
        values = [stand_ins.now(place) for place in self.places]
        gradients = [leaf.grad for leaf, _ in self.gradients]
        replaced = self._replaced(values, gradients, stand_ins)
        tensors = [replaced.get(id(tensor), tensor) for tensor in self.tensors]
        self._compare_forms(tensors)
        stand_ins.take_over()
        for place, now in zip(self.places, values, strict=True):
            place.value = now
        self.gradients = [(leaf, g) for (leaf, _), g in zip(self.gradients, gradients, strict=True)]
        old = self.storages
        self._expect(tensors)
        return not all(map(is_, old, self.storages))

    def varying(self) -> list[Place]:
        """Places of numbers that are others now."""
        elements = chain.from_iterable(place.elements() for place in self.places)
        return [place for place in chain(self.places, elements) if varies(place, place.now())]

    # --- looking closely --------------------------------------------------------------------------

    def _stand_ins(self) -> StandIns:
        stand_ins = StandIns(self.places, self._fixed)
        met = [(place.value, place.now()) for place in self.places if is_container(place.value)]
        for old, new in sorted(met, key=lambda pair: pair[0] is not pair[1]):
            stand_ins.meet(old, new)
        return stand_ins

    def _replaced(
        self, values: list[Any], gradients: list[Any], stand_ins: StandIns
    ) -> dict[int, torch.Tensor]:
        """The tensors that stand for others, by the id of these; raises where values differ."""
        replaced: dict[int, torch.Tensor] = {}
        try:
            for place, now in zip(self.places, values, strict=True):
                self._compare(place.label, place.value, now, replaced, stand_ins)
        except Changed as changed:
            raise Changed(str(changed), self.varying()) from None
        for (leaf, was), now in zip(self.gradients, gradients, strict=True):
            label = f"the .grad of a {errors.describe(leaf)}"
            self._compare(label, was, now, replaced, stand_ins)
        return replaced

    def _compare_forms(self, tensors: list[torch.Tensor]) -> None:
        """Raise where tensors have other forms than before, or share memory in another way."""
        for tensor, form in zip(tensors, self._forms, strict=True):
            if _form(tensor) != form:
                raise Changed(f"a tensor was {_show(form)}, now it is {_show(_form(tensor))}")
        if _aliases(list(map(_storage_of, tensors))) != _aliases(self.storages):
            raise Changed("tensors that shared memory no longer do, or others do now")

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


def _with_elements(value: Any) -> Iterator[Any]:
    """A value, or what a tuple or a frozen set holds: it holds that for good."""
    if isinstance(value, tuple | frozenset):
        for element in value:
            yield from _with_elements(element)
    else:
        yield value


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


def _fills_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor shows all of its memory, so that it has no other place in it."""
    return is_jax(tensor) and is_whole(tensor, held_by(tensor))


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
