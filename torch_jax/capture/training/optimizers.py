"""The steps of optimizers inside a traced function.

What a user changes between steps – learning rate, betas, weight decay – becomes an input of the
program, read anew at each call. Schedulers run on the host at each call.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torch_jax.capture.capture import paused
from torch_jax.capture.host.cpu_tensors import is_host
from torch_jax.capture.host.tape import Changed
from torch_jax.capture.state.places import (
    MISSING,
    Address,
    Contents,
    DictEntry,
    Element,
    Place,
)
from torch_jax.capture.training.optimizer_state import init_group, keep_steps_on_device
from torch_jax.core import numbers
from torch_jax.core.numbers import Number
from torch_jax.core.tracers import NotTraceableError
from torch_jax.memory import storage
from torch_jax.memory.storage import is_jax

_GLOBAL_STEP_HOOKS = [
    value
    for name, value in vars(importlib.import_module("torch.optim.optimizer")).items()
    if name.startswith("_global_optimizer") and isinstance(value, dict)
]


def parameters_of(value: Any) -> Iterator[torch.Tensor]:
    """The parameters of a module or an optimizer, or the one that a tensor is."""
    if isinstance(value, torch.nn.Parameter):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.optim.Optimizer):
        for group in value.param_groups:
            yield from group["params"]


class Gradient:
    """The ``.grad`` of a tensor: as it was at first, and whether the trace reset it unread."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor, self.before, self.reset = tensor, tensor.grad, False


@dataclass(eq=False)  # known by identity: ``==`` of traced numbers would go on the tape
class _Step:
    """A step under way: its optimizer's groups as they were, and with numbers of the trace."""

    optimizer: Any
    before: list[dict]
    lifted: list[dict]
    mode: TorchFunctionMode


class _StateOf(DictEntry):
    """The state of one parameter, which is there after the step of the trace."""

    __slots__ = ()
    can_be_effect = False


class Optimizers:
    """The optimizers, schedulers and gradients of one trace."""

    def __init__(self, capture: Any):
        self.capture = capture
        self.gradients: dict[int, Gradient] = {}
        self.places: dict[Address, Place] = {}
        self.stepped: list[Any] = []
        self.changed: dict[Address, Place] = {}  # what steps changed in their optimizers' groups
        self._running: list[_Step] = []

    def stepped_parameters(self) -> list[torch.Tensor]:
        """The parameters of the optimizers that stepped."""
        return [tensor for optimizer in self.stepped for tensor in parameters_of(optimizer)]

    @property
    def is_stepping(self) -> bool:
        """Whether an optimizer is in its step."""
        return bool(self._running)

    # --- gradients --------------------------------------------------------------------------------

    def note_gradient(self, tensor: torch.Tensor) -> Gradient:
        """Remember the ``.grad`` of a tensor as it is before the trace touches it."""
        found = self.gradients.get(id(tensor))
        if found is None:
            found = self.gradients[id(tensor)] = Gradient(tensor)
        return found

    def restore_gradients(self) -> None:
        """Give every tensor the gradient it had before the trace."""
        for gradient in self.gradients.values():
            gradient.tensor.grad = gradient.before

    def reset_gradient(self, tensor: torch.Tensor) -> None:
        """Set ``tensor.grad = None``; a gradient that nobody read before needs no guard."""
        gradient = self.note_gradient(tensor)
        gradient.reset |= tensor.grad is gradient.before and not self._was_read(gradient.before)
        tensor.grad = None

    def _was_read(self, tensor: torch.Tensor | None) -> bool:
        memory = None if tensor is None else tensor.untyped_storage()
        return memory is not None and self.capture.input_of(memory) is not None

    # --- steps ------------------------------------------------------------------------------------

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step: numbers become inputs, and lazy state is made."""
        for tensor in parameters_of(optimizer):
            self.note_gradient(tensor)
        with paused():
            keep_steps_on_device(optimizer, self.capture.undo)
        if not any(optimizer is known for known in self.stepped):
            self.stepped.append(optimizer)
        before = [dict(group) for group in optimizer.param_groups]
        for index, group in enumerate(optimizer.param_groups):
            for key, value in before[index].items():
                group[key] = self._lift(optimizer, index, key, value)
        lifted = [dict(group) for group in optimizer.param_groups]
        mode = _Items(self.capture)
        mode.__enter__()
        original = getattr(optimizer, "_init_group", None)
        if original is not None:
            optimizer._init_group = functools.partial(
                init_group, self.capture, self._place, optimizer, original
            )
        self._running.append(_Step(optimizer, before, lifted, mode))
        self.capture.restore.append(functools.partial(self._restore, optimizer))

    def _lift(self, optimizer: Any, index: int, key: str, value: Any) -> Any:
        if not _is_lifted(value) or self._is_set_here(optimizer, index, key, value):
            return value
        if type(value) is float:
            return self._number(optimizer, index, key, None)
        each = enumerate(value)
        return tuple(
            self._number(optimizer, index, key, i) if type(v) is float else v for i, v in each
        )

    def _is_set_here(self, optimizer: Any, index: int, key: str, value: Any) -> bool:
        """Whether the function puts a value of its own in the place of one that is an input."""
        notes, group = self.capture.watch.notes, optimizer.param_groups[index]
        entry = DictEntry.at(group, key)
        if isinstance(value, numbers.NUMBERS):
            if self._is_running(optimizer):
                return True  # a step that calls the step of its base
            known = notes.places.keys() & {Element.at(group, key), Contents.at(group, "")}
            known |= self.changed.keys() & {entry}
            if not known and (id(group), key) not in notes.lifted:
                raise NotTraceableError(f"an optimizer's {key} is set where nobody watches it")
            return True
        was_changed = entry in self.places  # by a step before
        return was_changed or (id(group), key) in notes.lifted

    def _number(self, optimizer: Any, index: int, key: str, part: int | None) -> Number:
        read = self.capture.literals.setdefault(
            ("read", id(optimizer), index, key, part), _Read(optimizer, index, key, part)
        )
        slot, _ = self.capture.tape.once(read, ())
        return Number(self.capture, slot)

    def after_step(self, optimizer: Any) -> None:
        """The step is done: the numbers are Python's again."""
        self._leave(optimizer)
        self._note(optimizer)

    def _restore(self, optimizer: Any) -> None:
        while self._is_running(optimizer):
            self._leave(optimizer)

    def _is_running(self, optimizer: Any) -> bool:
        return any(optimizer is step.optimizer for step in self._running)

    def _leave(self, optimizer: Any) -> None:
        """Leave the innermost step of an optimizer."""
        steps = reversed(self._running)
        step = next((step for step in steps if step.optimizer is optimizer), None)
        if step is None:
            return
        self._running.remove(step)
        optimizer.__dict__.pop("_init_group", None)
        step.mode.__exit__(None, None, None)
        for group, before, lifted in zip(
            optimizer.param_groups, step.before, step.lifted, strict=True
        ):
            for key in before.keys() | group.keys():
                if key in before and group.get(key, MISSING) is lifted[key]:
                    group[key] = before[key]
                else:
                    name = f"{type(optimizer).__name__}'s {key}"
                    self._note_change(DictEntry(group, key, name, before.get(key, MISSING)))

    def _note_change(self, place: Place) -> None:
        """A step has put something into its optimizer's group; the place knows what was there."""
        self.capture.undo.append(functools.partial(place.put, place.value))
        self.changed.setdefault(place.address, place)
        if not isinstance(place.value, numbers.NUMBERS):  # a number is an input, read anew
            place.is_read = True
            self.places.setdefault(place.address, place)

    def _note(self, optimizer: Any) -> None:
        """What the step relied on, besides numbers: the groups, their parameters, the state."""
        name = type(optimizer).__name__
        self._place(DictEntry, vars(optimizer), "state", f"{name}.state")
        self._place(Contents, optimizer.param_groups, "", f"{name}.param_groups")
        for hooks in (*_step_hooks(optimizer), *_GLOBAL_STEP_HOOKS):
            self._place(Contents, hooks, "", f"the hooks of {name}")
        for group in optimizer.param_groups:
            self._place(Contents, group["params"], "", f"{name}'s parameters")
            for key, value in group.items():
                if key != "params" and not _is_lifted(value):
                    self._place(DictEntry, group, key, f"{name}'s {key}")
            for parameter in group["params"]:
                if DictEntry.at(optimizer.state, parameter) not in self.places:
                    self._note_new_state(optimizer.state.get(parameter, {}), name)
            for parameter in group["params"]:
                if parameter in optimizer.state:  # somebody may remove it, or all of them
                    self._state_of(optimizer.state, parameter, name)

    def _note_new_state(self, state: dict, name: str) -> None:
        """State that the step itself made: the next step finds it, and is another program."""
        for key in state:
            new = DictEntry(state, key, f"{name}'s {key}", MISSING)
            self.places.setdefault(new.address, new)

    def _state_of(self, states: dict, parameter: Any, name: str) -> None:
        """Later calls must find the state of a parameter that this one found or made."""
        address = _StateOf.at(states, parameter)
        if address not in self.places:
            place = _StateOf(states, parameter, f"{name}'s state of a parameter")
            place.is_read = True
            self.places[place.address] = place

    def _place(self, kind: type[Place], owner: Any, key: Any, label: str) -> None:
        if kind.at(owner, key) not in self.places:
            place = kind(owner, key, label)
            place.is_read = True
            self.places[place.address] = place

    def effects(self) -> Iterator[tuple[Place, Any]]:
        """State that the steps made, with what stands there now."""
        absent = (place for place in self.places.values() if place.value is MISSING)
        made = (place for place in absent if place.address not in self.changed)
        for place in (*made, *self.changed.values()):
            yield place, place.now()

    def on_host(self, action: Any, save: Any) -> Any:
        """Run something on the host, now and at every call, at this point among its numbers."""
        self.capture.undo.append(save())
        with paused():
            result = action()
        self.capture.tape.record(action, (), result, needed=True, save=save)
        self.capture.tape.forget()
        return result


def _is_lifted(value: Any) -> bool:
    """Whether a value of a group holds numbers that become inputs."""
    parts = value if isinstance(value, tuple) else (value,)
    return any(type(part) is float or isinstance(part, numbers.NUMBERS) for part in parts)


def _step_hooks(optimizer: Any) -> list[dict]:
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return [getattr(optimizer, name) for name in names if hasattr(optimizer, name)]


class _Read:
    """Reads a number of an optimizer's group."""

    def __init__(self, optimizer: Any, index: int, key: str, part: int | None):
        self.optimizer, self.index, self.key, self.part = optimizer, index, key, part
        self.__name__ = key

    def __call__(self) -> float:
        value = self.optimizer.param_groups[self.index][self.key]
        value = value if self.part is None else value[self.part]
        if isinstance(value, Number):  # while the optimizer steps in a trace
            return value.value
        if type(value) is int:
            return float(value)
        if type(value) is not float:
            raise Changed(f"{self.key} was a float, now it is {value!r}")
        return value


class _Items(TorchFunctionMode):
    """In an optimizer's step ``item`` gives traced numbers, of CPU and of device tensors."""

    def __init__(self, capture: Any):
        super().__init__()
        self.capture = capture

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.item:
            (tensor,) = args
            if is_host(tensor):
                return self.capture.host.number(tensor)
            if is_jax(tensor) and tensor.is_floating_point():
                return Number(self.capture, array=_wide(self.capture, tensor))
        return func(*args, **(kwargs or {}))


def _wide(capture: Any, tensor: torch.Tensor) -> Any:
    """A one-element tensor as a traced float64 scalar."""
    wide = tensor.detach().reshape(()).to(torch.float64)
    return storage.memory_of(wide)
