"""Replacements in PyTorch by which an observed call hears of a training step.

Optimizers' steps, schedulers, ``zero_grad`` and seeds are plain Python, which no operator shows.
``GradScaler.step`` looks whether a gradient was infinite, and skips the step if so. A program
cannot look: there the step is always made, and for each storage that it wrote the program chooses
between what it held before and what the step put there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torch_jax._private import pytorch
from torch_jax.capture.training.optimizers import move_counts, parameters_of, saved, states_of
from torch_jax.core import patching
from torch_jax.core.active import ACTIVE
from torch_jax.core.patching import AT_FIRST_JIT, around, patch
from torch_jax.core.tracers import NotTraceableError
from torch_jax.memory import generators
from torch_jax.memory.storage import is_jax


@functools.cache
def install() -> None:
    """Hear of the steps of optimizers, and put the replacements in place; once in a process."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    patching.apply(AT_FIRST_JIT)


@around("torch.manual_seed", AT_FIRST_JIT)
def _manual_seed(original: Any, seed: int) -> Any:
    """Have each call of a compiled function seed the CPU's generator again."""
    generator = original(seed)
    if ACTIVE.observer is not None:
        action = functools.partial(torch.default_generator.manual_seed, int(seed))
        ACTIVE.observer.tape.record(action, (), None, needed=True)
    return generator


@around("torch.get_rng_state", AT_FIRST_JIT)
def _get_rng_state(original: Any) -> torch.Tensor:
    """Have each call keep the state that it finds, to put it back."""
    state = original()
    if ACTIVE.observer is not None:
        ACTIVE.observer.tape.record(original, (), state)
        ACTIVE.observer.host.note_made(state)
    return state


@around("torch.set_rng_state", AT_FIRST_JIT)
def _set_rng_state(original: Any, new_state: torch.Tensor) -> None:
    """Have each call set the CPU's generator to the state that it has kept, or was given."""
    original(new_state)
    if ACTIVE.observer is not None:
        slot = ACTIVE.observer.tape.slot_of(new_state)
        ACTIVE.observer.tape.record(original, (slot,), None, needed=True)


@around("torch.seed", AT_FIRST_JIT)
def _seed(original: Any) -> int:
    """Refuse a seed of the system's: it differs at each call, and a program is one."""
    if ACTIVE.tracer is not None or ACTIVE.observer is not None:
        generators.refuse_seed("torch.seed()")
    return original()


@around("torch.optim.Optimizer.zero_grad", AT_FIRST_JIT)
@around("torch.nn.Module.zero_grad", AT_FIRST_JIT)
def _zero_grad(original: Any, self: Any, set_to_none: bool = True) -> None:
    """Have each call drop the gradients that it finds: no operator shows that."""
    if ACTIVE.observer is not None and set_to_none:
        for parameter in parameters_of(self):
            ACTIVE.observer.optimizers.resets_gradient(parameter)
    original(self, set_to_none)


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if ACTIVE.tracer is not None:
        ACTIVE.tracer.optimizers  # noqa: B018, a graph has none, and says so
    if ACTIVE.observer is not None:
        ACTIVE.observer.optimizers.before_step(optimizer)
    else:
        move_counts(optimizer, is_observed=False)


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if ACTIVE.observer is not None:
        ACTIVE.observer.optimizers.after_step(optimizer)


@patch("torch.optim.lr_scheduler.LRScheduler", AT_FIRST_JIT, is_registration=True)
def _patch_schedulers(_kind: Any) -> Any:
    """Have the host move schedulers on at each call, those of the classes that exist by now."""
    steps = [(kind, vars(kind)["step"]) for kind in _schedulers()]
    for kind, step in steps:
        kind.step = _on_host(step)

    def restore() -> None:
        for kind, step in steps:
            kind.step = step

    return restore


def _schedulers() -> Iterator[Any]:
    """Yield the classes that define how a scheduler steps."""
    kinds: list[Any] = [LRScheduler, ReduceLROnPlateau]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if "step" in vars(kind):
            yield kind


def _on_host(original: Any) -> Any:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ACTIVE.observer is None:
            return original(self, *args, **kwargs)
        action = functools.partial(original, self, *args, **kwargs)
        return ACTIVE.observer.optimizers.on_host(action, functools.partial(_save_schedule, self))

    return step


def _save_schedule(scheduler: Any) -> Callable[[], None]:
    schedulers: list[Any] = [scheduler]
    for one in schedulers:  # those that it is made of, too
        schedulers += getattr(one, "_schedulers", ())
    groups = [group for one in schedulers for group in one.optimizer.param_groups]
    return saved([*(one.__dict__ for one in schedulers), *groups])


_SCALER = "torch.amp.grad_scaler.GradScaler"


@around(f"{_SCALER}.scale", AT_FIRST_JIT)
def _scale(original: Any, scaler: Any, outputs: Any) -> Any:
    """Make scale and growth tracker before a pure call meets them: later calls find them."""
    observer = ACTIVE.observer
    on_device = scaler._device == pytorch.DEVICE_TYPE
    if observer is not None and on_device and scaler.is_enabled() and scaler._scale is None:
        scaler._lazy_init_scale_growth_tracker(torch.device(pytorch.DEVICE_TYPE))
        observer.takes_over(scaler._scale)
        observer.takes_over(scaler._growth_tracker)
    return original(scaler, outputs)


@around(f"{_SCALER}._maybe_opt_step", AT_FIRST_JIT)
def _maybe_opt_step(original: Any, scaler: Any, optimizer: Any, state: Any, *args, **kwargs) -> Any:
    """Scalers look at values to skip a step: in a program each written storage chooses."""
    found = list(state["found_inf_per_device"].values())
    observer = ACTIVE.observer
    if observer is None or not all(map(is_jax, found)):
        return original(scaler, optimizer, state, *args, **kwargs)
    move_counts(optimizer)  # as a step does, before its entries are looked at
    storages = observer.storages.all()  # they stay, and with them their ids
    before = {id(memory): memory.array for memory in storages}
    entries = {id(one): dict(one) for one in _dicts_of(optimizer)}
    restore = saved(_dicts_of(optimizer))
    observer.makes_state, made_before = False, observer.makes_state
    result = optimizer.step(*args, **kwargs)
    if (why := _why_not_skipped(optimizer, entries, observer.makes_state)) is not None:
        restore()
        for memory in storages:
            memory.array = before[id(memory)]
        raise NotTraceableError(why)
    observer.makes_state = made_before
    # state that the step has made, for later calls to find
    before = {id(one.storage): one.old() for one in observer.storages.met} | before
    observer.choose([sum(found) == 0], before)
    return result


def _dicts_of(optimizer: Any) -> list[dict]:
    return [*optimizer.param_groups, *states_of(optimizer).values()]


def _why_not_skipped(optimizer: Any, before: dict[int, dict], makes_state: bool) -> str | None:
    """Return why the device cannot skip a step that set an entry, or made its state; or None."""
    name = type(optimizer).__name__
    if makes_state:  # its state is new: there is none to go back to
        return (
            f"the first step of {name} makes its state out of gradients, and GradScaler.step may "
            "skip it: take it outside of the function, or drop pure=True."
        )
    for one in _dicts_of(optimizer):
        known = before.get(id(one), {})
        for key, value in one.items():
            is_new = key not in known and isinstance(value, (torch.Tensor, dict))
            if not is_new and value is not known.get(key, one):
                return (
                    f"a step of {name} sets its {key!r} on the host, where a program does not know "
                    "that GradScaler.step skips one. Pass capturable=True to the optimizer if it "
                    "has that, or drop pure=True."
                )
    return None
