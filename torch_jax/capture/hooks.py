"""Replacements in PyTorch by which an observed call hears of a training step.

Optimizers' steps, schedulers, ``zero_grad`` and seeds are plain Python, which no operator shows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torch_jax._private import pytorch
from torch_jax.capture.optimizers import move_counts, parameters_of
from torch_jax.core import patching
from torch_jax.core.active import ACTIVE
from torch_jax.core.patching import AT_FIRST_JIT, around, patch
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
        ACTIVE.observer.tape.record(action, (), None, needed=True, has_effect=True)
    return generator


@around("torch.get_rng_state", AT_FIRST_JIT)
def _get_rng_state(original: Any) -> torch.Tensor:
    """Have each call keep the state that it finds, to put it back."""
    state = original()
    if ACTIVE.observer is not None:
        ACTIVE.observer.tape.record(original, (), state, has_effect=True)
        ACTIVE.observer.host.note_made(state)
    return state


@around("torch.set_rng_state", AT_FIRST_JIT)
def _set_rng_state(original: Any, new_state: torch.Tensor) -> None:
    """Have each call set the CPU's generator to the state that it has kept, or was given."""
    original(new_state)
    if ACTIVE.observer is not None:
        slot = ACTIVE.observer.tape.slot_of(new_state)
        ACTIVE.observer.tape.record(original, (slot,), None, needed=True, has_effect=True)


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
    kinds: list[Any] = [LRScheduler]
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
        moves = functools.partial(original, self, *args, **kwargs)
        return ACTIVE.observer.optimizers.moves_on(moves)

    return step


@around("torch.amp.grad_scaler.GradScaler._maybe_opt_step", AT_FIRST_JIT)
def _maybe_opt_step(original: Any, scaler: Any, optimizer: Any, state: Any, *args, **kwargs) -> Any:
    """Have Python run at each call: it looks for infinite gradients, and skips the step."""
    observer, found = ACTIVE.observer, state["found_inf_per_device"].values()
    if observer is None or not all(map(is_jax, found)):
        return original(scaler, optimizer, state, *args, **kwargs)
    observer.refuse("GradScaler.step looks at a value")
    with pytorch.no_dispatch_modes():
        is_infinite = any(one.item() for one in found)
    return None if is_infinite else optimizer.step(*args, **kwargs)
