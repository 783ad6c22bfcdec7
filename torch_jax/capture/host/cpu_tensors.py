"""CPU tensors inside a traced function: what is done to them is written on the tape.

A CPU tensor that a traced function reads may hold something else at the next call. So each operator
on CPU tensors is run, and written down to be run again at every call; a value that goes to the
device becomes an input of the program; one that Python looks at becomes a guard.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch_jax.capture.host.tape import Changed, Tape
from torch_jax.core import tracers
from torch_jax.core.numbers import Number
from torch_jax.memory import dtypes, geometry, storage, transfer
from torch_jax.memory.storage import is_jax

_TO_COPY = torch.ops.aten._to_copy.default
_LIFT = torch.ops.aten.lift_fresh.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_CROSSING = (torch.ops.aten.copy_.default, torch.ops.aten._copy_from.default)
_RANDOM = torch.Tag.nondeterministic_seeded


def is_host(value: Any) -> bool:
    """Whether a value is a CPU tensor."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def is_asked_back(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operator brings a value of the device to the host."""
    device = kwargs.get("device")
    return func is _ITEM or (func is _TO_COPY and device is not None and device.type == "cpu")


class Host:
    """The CPU tensors of one trace, and where each stands on the tape."""

    def __init__(self, capture: Any, tape: Tape):
        self.capture, self.tape = capture, tape
        # tensors that the trace met and did not make: their slots, and the lines that read them
        self.roots: list[tuple[torch.Tensor, int, str]] = []
        self._saved: dict[int, torch.Tensor] = {}
        self._slots: dict[int, tuple[torch.Tensor, int]] = {}
        # slots of the storages whose values may change from call to call
        self._storages: dict[int, Any] = {}

    def argument(self, tensor: torch.Tensor) -> int:
        """Take a CPU tensor among the arguments; the slot that each call fills."""
        self._changes(tensor)
        return self._place(tensor, self.tape.constant(tensor))

    def makes(self, tensor: torch.Tensor, slot: int) -> None:
        """Take a CPU tensor that a step of the tape makes at each call."""
        self._changes(tensor)
        self._place(tensor, slot)

    def slot_of(self, tensor: torch.Tensor) -> int:
        """Where a tensor stands on the tape."""
        found = self._slots.get(id(tensor))
        if found is not None:
            return found[1]
        kept = self._storages.get(id(tensor.untyped_storage()))
        if kept is not None:  # an alias made behind the dispatcher's back, such as ``.data``
            return self._place(tensor, self.tape.record(_alias(tensor), (kept,), tensor))
        slot = self.argument(tensor)
        self.roots.append((tensor, slot, tracers.user_line()))
        return slot

    def _place(self, tensor: torch.Tensor, slot: int) -> int:
        self._slots[id(tensor)] = tensor, slot
        if id(tensor.untyped_storage()) in self._storages:
            self._storages[id(tensor.untyped_storage())] = slot
        return slot

    def _changes(self, tensor: torch.Tensor) -> None:
        self._storages.setdefault(id(tensor.untyped_storage()), None)

    def may_change(self, tensor: torch.Tensor) -> bool:
        """Whether a later call may find another value in the tensor."""
        self.slot_of(tensor)
        return id(tensor.untyped_storage()) in self._storages

    # --- operators --------------------------------------------------------------------------------

    def operator(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an operator that takes or makes CPU tensors, and write it down."""
        leaves, form = pytree.tree_flatten((args, kwargs))
        if self._crosses(func, leaves, kwargs):
            moved = [self._moved(func, leaf) if is_host(leaf) else leaf for leaf in leaves]
            for tensor in filter(is_host, moved):  # read where nobody sees it, as lengths are
                self.fix(tensor)
            args, kwargs = pytree.tree_unflatten(moved, form)
            return self._fixed(self.capture.on_device(func, args, kwargs))
        if func is _LIFT:
            return self._lift(args[0])
        if func is _ITEM:
            return self._item(args[0])
        if func._schema.is_mutable:
            self._save(leaves)
        result = func(*args, **kwargs)
        if any(map(is_host, pytree.tree_leaves(result))) or func._schema.is_mutable:
            self._write_down(func, leaves, form, result)
        else:
            self._guard(func, leaves, form, result)
        return result

    def _fixed(self, result: Any) -> Any:
        """Results on the CPU of an operator of both devices, which hang on fixed values."""
        for tensor in filter(is_host, pytree.tree_leaves(result)):
            slot = self.tape.constant(tensor.clone())
            self._place(tensor, self.tape.record(torch.clone, (slot,), tensor))
        return result

    def _save(self, leaves: list[Any]) -> None:
        """Save what an operator is about to write, to be put back should the trace fail."""
        for tensor in (leaf for leaf in leaves if is_host(leaf)):
            if id(tensor) not in self._saved:
                self._saved[id(tensor)] = tensor
                copy = tensor.detach().clone()
                self.capture.undo.append(functools.partial(_restore, tensor, copy))

    def _crosses(self, func: Any, leaves: list[Any], kwargs: dict[str, Any]) -> bool:
        if func is _TO_COPY:
            device = kwargs.get("device")
            return device is not None and device.type == "jax"
        return any(isinstance(leaf, torch.Tensor) and is_jax(leaf) for leaf in leaves)

    def _moved(self, func: Any, tensor: torch.Tensor) -> torch.Tensor:
        """A CPU operand as a device tensor, where the device takes it: an input of the program."""
        crosses = func is _TO_COPY or func in _CROSSING
        if crosses or tensor.dim() == 0 or self.capture.takes_host(func):
            return self.to_device(tensor)
        return tensor

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value of a CPU tensor as a device tensor of the trace, with its strides if dense."""
        order = geometry.memory_order(tensor.shape, tensor.stride())
        order = order or tuple(range(tensor.dim()))
        read = _Reader(order)
        slot = self.tape.record(read, (self.slot_of(tensor),), read(tensor))
        array = self.tape.env[slot]
        if self.may_change(tensor):
            self.tape.record(_same_form(array), (slot,), None, needed=True)
            array = self.capture.new_input("host", slot, array.shape, array.dtype)
        else:
            array = transfer.array_of(tensor.permute(order))
        made = storage.wrap(array, tensor.dtype)
        back = sorted(range(len(order)), key=order.__getitem__)
        return made.permute(back) if order != tuple(range(tensor.dim())) else made

    def _lift(self, data: torch.Tensor) -> torch.Tensor:
        """``torch.tensor(...)``: the data come from Python, and each call needs a copy."""
        result = data.clone()
        self._place(result, self.tape.record(torch.clone, (self.tape.constant(data),), result))
        return result

    def _item(self, tensor: torch.Tensor) -> Any:
        value = tensor.item()
        if self.may_change(tensor):
            slot = self.tape.record(torch.Tensor.item, (self.slot_of(tensor),), value)
            self.tape.expect("the value of a CPU tensor", slot)
        return value

    def number(self, tensor: torch.Tensor) -> Any:
        """``item`` for an optimizer: a float stays a traced number."""
        if not self.may_change(tensor) or not tensor.is_floating_point():
            return tensor.item()
        value = dtypes.numpy_of(tensor).item()
        return Number(
            self.capture, self.tape.record(torch.Tensor.item, (self.slot_of(tensor),), value)
        )

    def fix(self, tensor: torch.Tensor) -> None:
        """Python looks at all values of a CPU tensor: later calls must find them again."""
        if self.may_change(tensor):
            slot = self.tape.record(_bytes_of, (self.slot_of(tensor),), _bytes_of(tensor))
            self.tape.expect("the values of a CPU tensor", slot)

    def _operand(self, leaf: Any) -> int:
        if is_host(leaf):
            return self.slot_of(leaf)
        return leaf.slot if isinstance(leaf, Number) else self.tape.constant(leaf)

    def _write_down(self, func: Any, leaves: list[Any], form: Any, result: Any) -> None:
        operands = tuple(map(self._operand, leaves))
        tensors = [leaf for leaf in leaves if is_host(leaf)]
        changes = _RANDOM in func.tags or any(map(self.may_change, tensors))
        effect = func._schema.is_mutable and changes
        save = _save_tensors if effect else None
        if _RANDOM in func.tags:
            save = functools.partial(_save_drawing, save or _save_tensors)
        slot = self.tape.record(_Replay(func, form), operands, result, effect, save)
        if changes:
            for tensor in (*pytree.tree_leaves(result), *self._written(func, leaves, form)):
                if is_host(tensor):
                    self._changes(tensor)
        for index, tensor in enumerate(result if isinstance(result, list | tuple) else [result]):
            if is_host(tensor) and id(tensor) not in self._slots:
                part = isinstance(result, list | tuple)
                self._place(
                    tensor, self.tape.record(_Part(index), (slot,), tensor) if part else slot
                )

    def _written(self, func: Any, leaves: list[Any], form: Any) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(leaves, form)
        found = []
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                found += pytree.tree_leaves(value)
        return found + list(kwargs.values())

    def _guard(self, func: Any, leaves: list[Any], form: Any, result: Any) -> None:
        """An operator gave a plain value, such as a bool of ``equal``: later calls must find it."""
        if any(self.may_change(leaf) for leaf in leaves if is_host(leaf)):
            operands = tuple(map(self._operand, leaves))
            slot = self.tape.record(_Replay(func, form), operands, result)
            if not isinstance(result, torch.Tensor):
                self.tape.expect(str(func), slot)


def _save_tensors(*values: Any) -> Any:
    """Save the CPU tensors among the values; a function that puts their elements back."""
    saved = [(value, value.detach().clone()) for value in values if is_host(value)]

    def undo() -> None:
        for tensor, copy in saved:
            _restore(tensor, copy)

    return undo


def _save_drawing(save: Any, *values: Any) -> Any:
    """Save the state of the CPU's generator too, or of the one among the values."""
    generators = [value for value in values if isinstance(value, torch.Generator)]
    generators = [g for g in generators if g.device.type == "cpu"] or [torch.default_generator]
    states = [(generator, generator.get_state()) for generator in generators]
    put_back = save(*values)

    def undo() -> None:
        put_back()
        for generator, state in states:
            generator.set_state(state)

    return undo


def _restore(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(copy)


def _bytes_of(tensor: torch.Tensor) -> tuple:
    return tuple(tensor.shape), tensor.dtype, dtypes.numpy_of(tensor).tobytes()


class _Replay:
    """Calls an operator with its flattened arguments."""

    def __init__(self, func: Any, form: Any):
        self.func, self.form = func, form

    def __call__(self, *leaves: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(leaves, self.form)
        return self.func(*args, **kwargs)


class _Part:
    def __init__(self, index: int):
        self.index = index

    def __call__(self, values: Any) -> Any:
        return values[self.index]


class _Reader:
    """Copies a CPU tensor into a NumPy array, its dims in the order of memory."""

    def __init__(self, order: tuple[int, ...]):
        self.order = order

    def __call__(self, tensor: torch.Tensor) -> np.ndarray:
        return np.array(dtypes.numpy_of(tensor.permute(self.order).contiguous()))


def _alias(tensor: torch.Tensor) -> Any:
    size, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
    return lambda kept: kept.detach().as_strided(size, stride, offset)


def _same_form(array: np.ndarray) -> Any:
    shape, dtype = array.shape, array.dtype

    def check(value: np.ndarray) -> None:
        if value.shape != shape or value.dtype != dtype:
            raise Changed(
                f"a CPU tensor was {dtype}{list(shape)}, now {value.dtype}{list(value.shape)}"
            )

    return check
