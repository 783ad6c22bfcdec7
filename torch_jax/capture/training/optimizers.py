"""Optimizers and schedulers inside a traced function.

What a user changes between steps – learning rate, betas, weight decay – becomes an input of the
program, read anew at each call. Schedulers run on the host at each call. State that an optimizer
makes on its first step is made before it is looked at, so that the first step is like all others.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_jax.capture.capture import Capture, paused
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
from torch_jax.core import numbers
from torch_jax.core.active import ACTIVE
from torch_jax.core.numbers import Number
from torch_jax.core.tracers import NotTraceableError
from torch_jax.memory import generators, storage
from torch_jax.memory.storage import is_jax

_GLOBAL_STEP_HOOKS = [
    value
    for name, value in vars(importlib.import_module("torch.optim.optimizer")).items()
    if name.startswith("_global_optimizer") and isinstance(value, dict)
]
_LIKE = frozenset(
    getattr(torch.ops.aten, f"{name}_like") for name in ("zeros", "ones", "full", "empty")
)
_NUMBERS_OF_MODULES = ("torch.optim._adafactor",)  # these take max and min of numbers


def install() -> None:
    """Hear of every optimizer's steps; called once."""
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    _patch_backward()
    _patch_manual_seed()
    _patch_cpu_state()
    for kind in (torch.optim.Optimizer, torch.nn.Module):
        _patch_zero_grad(kind)
    for name in _NUMBERS_OF_MODULES:
        module: Any = importlib.import_module(name)
        module.max, module.min = numbers.maximum, numbers.minimum


def _patch_backward() -> None:
    """Hear of backward passes, after which results are not differentiated once more."""
    for name in ("backward", "grad"):
        original = getattr(torch.autograd, name)

        @functools.wraps(original)
        def run(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            if ACTIVE.capture is not None:
                ACTIVE.capture.went_back = True
            return _original(*args, **kwargs)

        setattr(torch.autograd, name, run)


def _patch_manual_seed() -> None:
    """``torch.manual_seed`` seeds the CPU's generator too, at each call; ``torch.seed`` cannot."""
    original, seed_of_the_system = torch.manual_seed, torch.seed

    @functools.wraps(original)
    def manual_seed(seed: int) -> Any:
        seed = numbers.settled(seed)
        generator = original(seed)
        if isinstance(ACTIVE.capture, Capture):
            action = functools.partial(torch.default_generator.manual_seed, seed)
            ACTIVE.capture.tape.record(action, (), None, needed=True, save=_save_cpu_state)
        return generator

    @functools.wraps(seed_of_the_system)
    def seed() -> int:
        if ACTIVE.capture is not None:
            generators.refuse_seed("torch.seed()")
        return seed_of_the_system()

    torch.manual_seed, torch.seed = manual_seed, seed


def _patch_cpu_state() -> None:
    """The state of the CPU's generator is taken and put back (``fork_rng``) at each call."""
    get, put = torch.get_rng_state, torch.set_rng_state

    @functools.wraps(get)
    def get_rng_state() -> torch.Tensor:
        state = get()
        if isinstance(ACTIVE.capture, Capture):
            ACTIVE.capture.host.makes(state, ACTIVE.capture.tape.record(get, (), state))
        return state

    @functools.wraps(put)
    def set_rng_state(new_state: torch.Tensor) -> None:
        put(new_state)
        if isinstance(ACTIVE.capture, Capture):
            slot = ACTIVE.capture.host.slot_of(new_state)
            save = _save_cpu_state
            ACTIVE.capture.tape.record(put, (slot,), None, needed=True, save=lambda _: save())

    torch.get_rng_state, torch.set_rng_state = get_rng_state, set_rng_state


def _save_cpu_state() -> Any:
    return functools.partial(torch.default_generator.set_state, torch.default_generator.get_state())


def _patch_zero_grad(kind: Any) -> None:
    original = kind.zero_grad

    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if ACTIVE.capture is not None and set_to_none:
            for parameter in parameters_of(self):
                ACTIVE.capture.optimizers.reset_gradient(parameter)
        else:
            original(self, set_to_none)

    kind.zero_grad = zero_grad


def parameters_of(value: Any) -> Iterator[torch.Tensor]:
    """The parameters of a module or an optimizer, or the one that a tensor is."""
    if isinstance(value, torch.nn.Parameter):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.optim.Optimizer):
        for group in value.param_groups:
            yield from group["params"]


def patch_schedulers() -> None:
    """Make every scheduler class that there is by now run on the host where traced."""
    kinds = [LRScheduler, ReduceLROnPlateau]
    while kinds:
        kind: Any = kinds.pop()
        kinds += kind.__subclasses__()
        step = vars(kind).get("step")
        if step is not None and not hasattr(step, "_torch_jax_original"):
            kind.step = _on_host(step)


def _on_host(original: Any) -> Any:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ACTIVE.capture is None:
            return original(self, *args, **kwargs)
        args, kwargs = pytree.tree_map(numbers.settled, (args, kwargs))
        action = functools.partial(original, self, *args, **kwargs)
        save = functools.partial(_save_schedule, self)
        return ACTIVE.capture.optimizers.on_host(action, save)

    step._torch_jax_original = original  # type: ignore[attr-defined]
    return step


def _save_schedule(scheduler: Any) -> Any:
    state = dict(vars(scheduler))
    groups = [dict(group) for group in scheduler.optimizer.param_groups]

    def undo() -> None:
        vars(scheduler).update(state)
        for group, values in zip(scheduler.optimizer.param_groups, groups, strict=True):
            group.update(values)

    return undo


class Gradient:
    """The ``.grad`` of a tensor: as it was at first, and whether the trace reset it unread."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor, self.before, self.reset = tensor, tensor.grad, False


class Optimizers:
    """The optimizers, schedulers and gradients of one trace."""

    def __init__(self, capture: Any):
        self.capture = capture
        self.gradients: dict[int, Gradient] = {}
        self.places: dict[Address, Place] = {}
        self.stepped: list[Any] = []
        self.changed: dict[Address, Place] = {}  # what steps changed in their optimizers' groups
        self._running: list[tuple[Any, list, list, Any]] = []

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
        """``tensor.grad = None``, and what it was does not matter."""
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
        saved = [dict(group) for group in optimizer.param_groups]
        for index, group in enumerate(optimizer.param_groups):
            for key, value in saved[index].items():
                group[key] = self._lift(optimizer, index, key, value)
        placed = [dict(group) for group in optimizer.param_groups]
        mode = _Items(self.capture)
        mode.__enter__()
        original = getattr(optimizer, "_init_group", None)
        if original is not None:
            optimizer._init_group = functools.partial(self._init_group, optimizer, original)
        self._running.append((optimizer, saved, placed, mode))
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
            if any(optimizer is running for running, *_ in self._running):
                return True  # a step that calls the step of its base
            known = notes.places.keys() & {Element.at(group, key), Contents.at(group, "")}
            known |= self.changed.keys() & {entry}
            if not known and (id(group), key) not in notes.lifted:
                raise NotTraceableError(f"an optimizer's {key} is set where nobody watches it")
            return True
        return entry in self.places or (id(group), key) in notes.lifted  # changed by a step before

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
        while any(optimizer is running for running, *_ in self._running):
            self._leave(optimizer)

    def _leave(self, optimizer: Any) -> None:
        """Leave the innermost step of an optimizer."""
        entry = next((e for e in reversed(self._running) if e[0] is optimizer), None)
        if entry is None:
            return
        self._running.remove(entry)
        _, saved, placed, mode = entry
        optimizer.__dict__.pop("_init_group", None)
        mode.__exit__(None, None, None)
        for group, before, lifted in zip(optimizer.param_groups, saved, placed, strict=True):
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

    def _note_new_state(self, state: dict, name: str) -> None:
        """State that the step itself made: the next step will find it, and be another one."""
        for key in state:
            new = DictEntry(state, key, f"{name}'s {key}", MISSING)
            self.places.setdefault(new.address, new)

    def _place(self, kind: type[Place], owner: Any, key: Any, label: str) -> None:
        if kind.at(owner, key) not in self.places:
            place = kind(owner, key, label)
            place.is_read = True
            self.places[place.address] = place

    def _init_group(self, optimizer: Any, original: Any, group: dict, *lists: Any, **named: Any):
        """The optimizer's own ``_init_group``, the state it makes being made outside the trace."""
        missing = [p for p in group["params"] if p.grad is not None and not optimizer.state.get(p)]
        for parameter in missing:
            self.capture.undo.append(functools.partial(optimizer.state.pop, parameter, None))
        lengths = [len(values) if isinstance(values, list) else 0 for values in lists]
        try:
            with self._as_before(missing), paused(), _Forms():
                result = original(group, *lists, **named)
                _make_momentum(optimizer, group, lists)
        except Exception:  # the first state hangs on gradients: two programs then, not one
            for values, length in zip(lists, lengths, strict=True):
                if isinstance(values, list):
                    del values[length:]
            for parameter in missing:
                optimizer.state.pop(parameter, None)
                self._place(DictEntry, optimizer.state, parameter, "an optimizer's state")
            return original(group, *lists, **named)
        for parameter in group["params"]:
            for key in optimizer.state.get(parameter, ()):
                label = f"{type(optimizer).__name__}'s {key}"
                self._place(DictEntry, optimizer.state[parameter], key, label)
        return result

    def effects(self) -> Iterator[tuple[Place, Any]]:
        """State that the steps made, with what stands there now."""
        absent = (place for place in self.places.values() if place.value is MISSING)
        made = (place for place in absent if place.address not in self.changed)
        for place in (*made, *self.changed.values()):
            yield place, place.now()

    @contextmanager
    def _as_before(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        """Tensors hold what they held before the trace."""
        changed = []
        for tensor in tensors:
            entry = self.capture.input_of(tensor.untyped_storage())
            if entry is not None:
                changed.append((entry.source, entry.source.array))
                entry.source.array = entry.array
        try:
            yield
        finally:
            for place, array in changed:
                place.array = array

    def on_host(self, action: Any, save: Any) -> Any:
        """Run something on the host, now and at every call, at this point among its numbers."""
        self.capture.undo.append(save())
        with paused():
            result = action()
        self.capture.tape.record(action, (), result, needed=True, save=save)
        self.capture.tape.forget()
        return result


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if ACTIVE.capture is not None:
        ACTIVE.capture.optimizers.before_step(optimizer)


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if ACTIVE.capture is not None:
        ACTIVE.capture.optimizers.after_step(optimizer)


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


class _Forms(TorchDispatchMode):
    """Makes tensors like others by their form alone, since their values may be traced."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _LIKE:
            old, *rest = args
            form = old.shape, old.stride()
            args = torch.empty_strided(*form, dtype=old.dtype, device=old.device), *rest
        return func(*args, **(kwargs or {}))


def _wide(capture: Any, tensor: torch.Tensor) -> Any:
    """A one-element tensor as a traced float64 scalar."""
    wide = tensor.detach().reshape(()).to(torch.float64)
    return storage.memory_of(wide)


def keep_steps_on_device(optimizer: Any, undo: list[Any]) -> None:
    """Count steps on the device where the optimizer can: then nothing of them is read on the host.

    See ``capturable`` at https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html.
    """
    for group in optimizer.param_groups:
        on_device = all(map(is_jax, group["params"]))
        if group.get("capturable") is False and on_device:
            group["capturable"] = True
            undo.append(functools.partial(group.__setitem__, "capturable", False))
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                for key in ("step", "mu_product", "eta", "mu"):
                    if isinstance(state.get(key), torch.Tensor) and is_host(state[key]):
                        undo.append(functools.partial(state.__setitem__, key, state[key]))
                        state[key] = state[key].to(parameter.device)


def _make_momentum(optimizer: Any, group: dict, lists: Any) -> None:
    """SGD's momentum buffers, of zeros: its first step is then like all others.

    Only without dampening, which SGD leaves out on the first step.
    """
    if type(optimizer) is not torch.optim.SGD or not lists:
        return
    buffers = lists[-1]
    dampening = group["dampening"]
    plain = dampening.value if isinstance(dampening, Number) else dampening
    if plain != 0:
        return
    with_gradient = [p for p in group["params"] if p.grad is not None]
    for index, parameter in enumerate(with_gradient[: len(buffers)]):
        if buffers[index] is None:
            buffers[index] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            optimizer.state[parameter]["momentum_buffer"] = buffers[index]
