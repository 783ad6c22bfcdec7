"""What is replaced in PyTorch so that a trace hears of a training step.

Optimizers' steps, schedulers, ``zero_grad``, backward passes and seeds are all plain Python of
PyTorch's: no operator tells of them. Each replacement does what PyTorch does where nothing is
traced.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import _pytree as pytree

from torch_jax.capture.training.optimizers import parameters_of
from torch_jax.core import numbers
from torch_jax.core.active import ACTIVE, in_whole_function
from torch_jax.memory import generators

# Modules that call ``max`` and ``min`` on numbers.
_NUMBERS_OF_MODULES = ("torch.optim._adafactor",)


def install() -> None:
    """Replace everything but schedulers; called once."""
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
    """Hear of backward passes: a function that makes one does not leave its gradient to callers."""
    for name in ("backward", "grad"):
        original = getattr(torch.autograd, name)

        @functools.wraps(original)
        def run(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            if ACTIVE.tracer is not None:
                ACTIVE.tracer.went_back = True
            return _original(*args, **kwargs)

        setattr(torch.autograd, name, run)


def _patch_manual_seed() -> None:
    """``torch.manual_seed`` seeds the CPU's generator too, at each call; ``torch.seed`` cannot."""
    original, seed_of_the_system = torch.manual_seed, torch.seed

    @functools.wraps(original)
    def manual_seed(seed: int) -> Any:
        seed = numbers.settled(seed)
        generator = original(seed)
        if in_whole_function():
            action = functools.partial(torch.default_generator.manual_seed, seed)
            ACTIVE.tracer.tape.record(action, (), None, needed=True, save=_save_cpu_state)
        return generator

    @functools.wraps(seed_of_the_system)
    def seed() -> int:
        if ACTIVE.tracer is not None:
            generators.refuse_seed("torch.seed()")
        return seed_of_the_system()

    torch.manual_seed, torch.seed = manual_seed, seed


def _patch_cpu_state() -> None:
    """Each call takes and puts back the state of the CPU's generator, as ``fork_rng`` does."""
    get, put = torch.get_rng_state, torch.set_rng_state

    @functools.wraps(get)
    def get_rng_state() -> torch.Tensor:
        state = get()
        if in_whole_function():
            ACTIVE.tracer.host.makes(state, ACTIVE.tracer.tape.record(get, (), state))
        return state

    @functools.wraps(put)
    def set_rng_state(new_state: torch.Tensor) -> None:
        put(new_state)
        if in_whole_function():
            slot = ACTIVE.tracer.host.slot_of(new_state)
            save = _save_cpu_state
            ACTIVE.tracer.tape.record(put, (slot,), None, needed=True, save=lambda _: save())

    torch.get_rng_state, torch.set_rng_state = get_rng_state, set_rng_state


def _save_cpu_state() -> Any:
    return functools.partial(torch.default_generator.set_state, torch.default_generator.get_state())


def _patch_zero_grad(kind: Any) -> None:
    original = kind.zero_grad

    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if ACTIVE.tracer is not None and set_to_none:
            for parameter in parameters_of(self):
                ACTIVE.tracer.optimizers.reset_gradient(parameter)
        else:
            original(self, set_to_none)

    kind.zero_grad = zero_grad


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if ACTIVE.tracer is not None:
        ACTIVE.tracer.optimizers.before_step(optimizer)


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if ACTIVE.tracer is not None:
        ACTIVE.tracer.optimizers.after_step(optimizer)


# --- schedulers -----------------------------------------------------------------------------------


def patch_schedulers() -> None:
    """Make every scheduler class that exists by now run on the host in a trace."""
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
        if ACTIVE.tracer is None:
            return original(self, *args, **kwargs)
        args, kwargs = pytree.tree_map(numbers.settled, (args, kwargs))
        action = functools.partial(original, self, *args, **kwargs)
        save = functools.partial(_save_schedule, self)
        return ACTIVE.tracer.optimizers.on_host(action, save)

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
