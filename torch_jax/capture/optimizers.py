"""The steps of optimizers inside a function whose Python is skipped.

What a user changes between steps – learning rate, betas, weight decay – is an input of the program,
read at each call. Schedulers run on the host at each call. The state is made before a call looks at
it: a first step that makes it would be a program of its own, and each optimizer be compiled twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from torch_jax.capture.cpu_tensors import is_host
from torch_jax.capture.tape import Changed
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node
from torch_jax.core.numbers import Number, plain
from torch_jax.memory.storage import is_jax, tensors_in


def parameters_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters of a module or an optimizer."""
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.optim.Optimizer):
        for group in value.param_groups:
            yield from group["params"]


class Gradient:
    """The ``.grad`` of a tensor: as it was at first, and whether the call reset it unread."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor, self.before, self.reset = tensor, tensor.grad, False
        self.passed = False  # whether an optimizer has passed the tensor over, as there was none
        self.is_asked = False  # whether the call has asked for it, as a backward pass also does
        self.place: int | None = None  # among the arguments, if it is one


@dataclass(eq=False)  # known by identity: ``==`` of numbers would go on the tape
class _Step:
    """A step under way."""

    optimizer: Any
    groups: list[tuple[dict, dict]]  # each as it was, and with numbers of the tape
    states: dict[int, dict]  # what had been made, as it was, by the ids of ``states_of``


class Optimizers:
    """The optimizers, schedulers and gradients of one observed call."""

    def __init__(self, observer: Any):
        self.observer = observer
        self.gradients: dict[int, Gradient] = {}
        self._stepped: dict[int, Any] = {}  # optimizers, by id
        self.read: dict[Read, float | None] = {}  # by steps, before any scheduler moved on
        self._numbers: dict[Read, float | None] = {}  # as steps and schedulers have left them
        self._running: list[_Step] = []
        self._is_moving = self._has_moved = False  # whether a scheduler moves on, or has

    def note_gradient(self, tensor: torch.Tensor, is_asked: bool = True) -> Gradient:
        """Remember the ``.grad`` of a tensor before the call touches it."""
        gradient = self.gradients.setdefault(id(tensor), Gradient(tensor))
        gradient.is_asked |= is_asked
        return gradient

    def resets_gradient(self, tensor: torch.Tensor) -> None:
        """Note that ``tensor.grad`` is dropped; one that was not read before needs no guard."""
        gradient = self.note_gradient(tensor)
        if tensor.grad is gradient.before and not gradient.passed:
            gradient.reset |= not self.was_read(gradient.before)

    def was_read(self, tensor: torch.Tensor | None) -> bool:
        """Return whether the call has read a gradient of before."""
        if tensor is None or tensor.layout != torch.strided:
            return False
        return self.observer.storages.place_of(tensor.untyped_storage()) is not None

    def before_step(self, optimizer: Any) -> None:
        """Make numbers of the tape of an optimizer's floats, and its state, before it steps."""
        for tensor in parameters_of(optimizer):
            gradient = self.note_gradient(tensor)
            gradient.passed |= gradient.before is tensor.grad is None and not gradient.reset
        if self._has_moved:  # later calls read all numbers before
            self.observer.refuse("an optimizer steps after a scheduler has moved on")
        move_counts(optimizer)
        self._stepped[id(optimizer)] = optimizer
        if any(optimizer is step.optimizer for step in self._running):
            self._running.append(_Step(optimizer, [], {}))  # a step that calls its super's
            return
        self.notice_set_numbers()
        groups = []
        for index, group in enumerate(optimizer.param_groups):
            before = dict(group)
            for key, value in before.items():
                group[key] = self._lift(optimizer, index, key, value)
            groups.append((before, dict(group)))
        if (original := getattr(optimizer, "_init_group", None)) is not None:
            optimizer._init_group = functools.partial(init_group, optimizer, original)
        states = {key: dict(state) for key, state in states_of(optimizer).items() if state}
        self._running.append(_Step(optimizer, groups, states))

    def _lift(self, optimizer: Any, index: int, key: str, value: Any) -> Any:
        if not _holds_numbers(optimizer, key, value):
            return value
        number = functools.partial(self._number, optimizer, index, key)
        if not isinstance(value, tuple):
            return number(None)
        return tuple(number(at) if isinstance(one, float) else one for at, one in enumerate(value))

    def _number(self, optimizer: Any, index: int, key: str, part: int | None) -> Number:
        read = Read(optimizer, index, key, part)
        slot, self._numbers[read] = self.observer.tape.once(read, ())
        self.read.setdefault(read, self._numbers[read])
        return Number(self.observer, slot)

    def notice_set_numbers(self) -> None:
        """Refuse where Python has set a number since a step read it, and read them again."""
        for read, value in list(self._numbers.items()):
            if read.now() not in (value,):  # which nan is, too
                del self._numbers[read]
                self.observer.refuse(read.refusal)
                self.observer.tape.forget()

    def after_step(self, optimizer: Any) -> None:
        """Make Python's floats of the numbers again."""
        step = next((step for step in reversed(self._running) if step.optimizer is optimizer), None)
        if step is None:
            return
        self._running.remove(step)
        if not step.groups:
            return
        optimizer.__dict__.pop("_init_group", None)
        for owner, state in states_of(optimizer).items():
            known = step.states.get(owner)
            if known is None and any(map(self._is_computed, state.values())):
                self.observer.makes_state = True
            for key, value in state.items():
                is_made = isinstance(value, (torch.Tensor, dict))
                if value is not (known or {}).get(key) and not is_made:
                    state[key] = plain(value) if isinstance(value, Number) else value
                    self._sets(optimizer, key, is_of_first=known is None)
        for group, (before, lifted) in zip(optimizer.param_groups, step.groups, strict=True):
            for key in before.keys() | group.keys():
                if group.get(key, group) is lifted.get(key, group):
                    group[key] = before[key]
                else:
                    group[key] = plain(group[key])
                    self._sets(optimizer, key)

    def _sets(self, optimizer: Any, key: str, is_of_first: bool = False) -> None:
        """Refuse a step that sets a value of Python's, which later calls would not do."""
        self.observer.refuse(f"a step of {type(optimizer).__name__} sets its {key!r}", is_of_first)

    def _is_computed(self, value: Any) -> bool:
        """Return whether a value of a state is a tensor that the call has made of others."""
        if not isinstance(value, torch.Tensor):
            return False
        memory: Any = value.untyped_storage()
        return self.observer.storages.is_made(memory) and type(memory.array) is Node

    def leave_all(self) -> None:
        """Make Python's floats of all numbers, where a step has raised."""
        for step in list(self._running):
            self.after_step(step.optimizer)

    def moves_on(self, step: Callable[[], Any]) -> None:
        """Have a scheduler step, in this call and in each later one."""
        if self._is_moving:  # one that is made of this
            step()
            return
        self.notice_set_numbers()
        self._is_moving = self._has_moved = True
        try:
            step()
        finally:
            self._is_moving = False
        self.observer.tape.record(step, (), None, needed=True, has_effect=True)
        self.observer.tape.forget()
        self._numbers = {read: read.now() for read in self._numbers}

    def world(self) -> list[tuple[Any, Any, Any]]:
        """Return what the steps relied on: dict, key and value of what must be the same object."""
        found: list[tuple[Any, Any, Any]] = []
        for optimizer in self._stepped.values():
            for group in optimizer.param_groups:
                found += [
                    (group, k, v) for k, v in group.items() if not _holds_numbers(optimizer, k, v)
                ]
            for state in states_of(optimizer).values():
                found += [(state, k, v) for k, v in state.items()]
            own = vars(optimizer)  # load_state_dict makes others of both
            found += [(own, key, own[key]) for key in ("param_groups", "state") if key in own]
        return found

    def lists(self) -> list[list]:
        """Return the lists of groups and of parameters that were stepped through, and of hooks."""
        groups = [optimizer.param_groups for optimizer in self._stepped.values()]
        names = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
        hooks = [vars(one).get(name, []) for one in self._stepped.values() for name in names]
        return groups + hooks + [group["params"] for each in groups for group in each]


def _holds_numbers(optimizer: Any, key: str, value: Any) -> bool:
    """Return whether a value of a group holds numbers that are inputs."""
    if type(value) is int:  # which may have a fraction later
        return key == "lr" or type(optimizer.defaults.get(key)) is float
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, float) for part in parts)


@dataclass(frozen=True)
class Read:
    """Reads a number of an optimizer's group, or a ``part`` of a tuple of them."""

    optimizer: Any
    index: int
    key: str
    part: int | None

    @property
    def refusal(self) -> str:
        """Return what is said of a function that sets the number."""
        return f"it sets the {self.key!r} of {type(self.optimizer).__name__}"

    def now(self) -> float | None:
        """Return the number that the group holds; None where it holds none."""
        with suppress(LookupError, TypeError, Changed):
            return self()
        return None

    def __call__(self) -> float:
        value = self.optimizer.param_groups[self.index][self.key]
        value = value if self.part is None else value[self.part]
        if isinstance(value, Number):  # while the optimizer steps
            return value.value
        if isinstance(value, float) or type(value) is int:  # a float of NumPy's is one, too
            return float(value)
        raise Changed(f"{self.key} was a float, now it is {value!r}")


def init_group(optimizer: Any, original: Any, group: dict, *lists: Any, **named: Any) -> Any:
    """Call the ``original`` ``_init_group`` of an optimizer, whose new state is seen as older."""
    result, observer = original(group, *lists, **named), ACTIVE.observer
    states = [optimizer.state.get(parameter, {}) for parameter in group["params"]]
    for value in tensors_in(states):
        if observer.storages.is_made(value.untyped_storage()):
            observer.takes_over(value)
    return result


def move_counts(optimizer: Any, is_observed: bool = True) -> None:
    """Move counts of steps that are on the CPU, as code sets them again, where they have to be.

    In a call that ``is_observed`` all optimizers that can be are ``capturable``: they count on the
    device, so that the host reads no count.
    """
    for group in optimizer.param_groups:
        is_on, parameters = group.get("capturable"), group["params"]
        is_due = is_on is True or (is_on is False and is_observed)
        if not (is_due and all(map(is_jax, parameters))):
            continue
        group["capturable"] = True
        for parameter in parameters:
            state = optimizer.state.get(parameter, {})
            for key in ("step", "mu_product", "eta", "mu"):
                if is_host(state.get(key)):
                    state[key] = state[key].to(parameter.device)
                    if ACTIVE.observer is not None:
                        ACTIVE.observer.takes_over(state[key])


def states_of(optimizer: Any) -> dict[int, dict]:
    """Return the states of parameters by their ids, and by the optimizer's own id all of it."""
    inner = {id(p): one for p, one in optimizer.state.items() if isinstance(one, dict)}
    return {id(optimizer): optimizer.state, **inner}
