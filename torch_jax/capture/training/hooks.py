"""What is replaced in PyTorch so that a trace hears of a training step.

Optimizers' steps, schedulers, ``zero_grad``, backward passes and seeds are all plain Python of
PyTorch's: no operator tells of them. Each replacement does what PyTorch does where nothing is
traced.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import _adafactor  # noqa: F401, where max and min are replaced
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import _pytree as pytree

from torch_jax._private import pytorch
from torch_jax.capture.capture import unwatched
from torch_jax.capture.training import scaling  # noqa: F401, enters replacements
from torch_jax.capture.training.optimizer_state import move_counts
from torch_jax.capture.training.optimizers import parameters_of
from torch_jax.compiler import phases
from torch_jax.core import numbers, patching
from torch_jax.core.active import ACTIVE, in_whole_function
from torch_jax.core.patching import AT_FIRST_JIT, patch
from torch_jax.memory import generators


@functools.cache
def install() -> None:
    """Hear of the steps of optimizers, and put the replacements in place; once in a process."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    patching.apply(AT_FIRST_JIT)


@patch("torch.autograd.backward", AT_FIRST_JIT)
@patch("torch.autograd.grad", AT_FIRST_JIT)
def _patch_backward(original: Any) -> Any:
    """Functions that run a backward pass do not leave a second one to their callers."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if ACTIVE.tracer is not None:
            if in_whole_function():
                ACTIVE.tracer.goes_back()
            ACTIVE.tracer.went_back = True
        result = original(*args, **kwargs)
        if result is None and in_whole_function() and pytorch.current_graph_task() == -1:
            phases.mark(ACTIVE.tracer.trace)  # ``backward``, and not one that another one runs
        return result

    return run


@patch("torch.manual_seed", AT_FIRST_JIT)
def _patch_manual_seed(original: Any) -> Any:
    """It seeds the CPU's generator too, which each call of a compiled function has to do again."""

    @functools.wraps(original)
    def manual_seed(seed: int) -> Any:
        seed = numbers.pinned_value(seed)
        generator = original(seed)
        if in_whole_function():
            action = functools.partial(torch.default_generator.manual_seed, seed)
            ACTIVE.tracer.tape.record(action, (), None, needed=True, save=_save_cpu_state)
        return generator

    return manual_seed


@patch("torch.seed", AT_FIRST_JIT)
def _patch_seed(original: Any) -> Any:
    """A seed of the system's is another one at each call, which no program can be."""

    @functools.wraps(original)
    def seed() -> int:
        if ACTIVE.tracer is not None:
            generators.refuse_seed("torch.seed()")
        return original()

    return seed


@patch("torch.get_rng_state", AT_FIRST_JIT)
def _patch_get_state(original: Any) -> Any:
    """Each call takes the state of the CPU's generator as it is then (``fork_rng``)."""

    @functools.wraps(original)
    def get_rng_state() -> torch.Tensor:
        state = original()
        if in_whole_function():
            slot = ACTIVE.tracer.tape.record(original, (), state)
            ACTIVE.tracer.host.makes(state, slot)
        return state

    return get_rng_state


@patch("torch.set_rng_state", AT_FIRST_JIT)
def _patch_set_state(original: Any) -> Any:
    """Each call puts the state of the CPU's generator back (``fork_rng``)."""

    @functools.wraps(original)
    def set_rng_state(new_state: torch.Tensor) -> None:
        original(new_state)
        if in_whole_function():
            slot = ACTIVE.tracer.host.slot_of(new_state)
            save = _save_cpu_state
            ACTIVE.tracer.tape.record(original, (slot,), None, needed=True, save=lambda _: save())

    return set_rng_state


def _save_cpu_state() -> Any:
    return functools.partial(torch.default_generator.set_state, torch.default_generator.get_state())


@patch("torch.optim.Optimizer.zero_grad", AT_FIRST_JIT)
@patch("torch.nn.Module.zero_grad", AT_FIRST_JIT)
def _patch_zero_grad(original: Any) -> Any:
    """Each call has to drop the gradients that it finds, which no operator tells of."""

    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if ACTIVE.tracer is not None and set_to_none:
            for parameter in parameters_of(self):
                ACTIVE.tracer.optimizers.reset_gradient(parameter)
        else:
            original(self, set_to_none)

    return zero_grad


@patch("torch.optim._adafactor.max", AT_FIRST_JIT)
def _patch_max(_original: Any) -> Any:
    """Python's would compare numbers of a trace, and so fix them."""
    return numbers.maximum


@patch("torch.optim._adafactor.min", AT_FIRST_JIT)
def _patch_min(_original: Any) -> Any:
    """Python's would compare numbers of a trace, and so fix them."""
    return numbers.minimum


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if ACTIVE.tracer is not None:  # a graph has no optimizers, and says so when it is asked
        ACTIVE.tracer.optimizers.before_step(optimizer)
    else:
        with unwatched():
            move_counts(optimizer, [])


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if ACTIVE.tracer is not None:
        ACTIVE.tracer.optimizers.after_step(optimizer)


# --- schedulers -----------------------------------------------------------------------------------


@patch("torch.optim.lr_scheduler.LRScheduler", AT_FIRST_JIT, is_registration=True)
def _patch_schedulers(_kind: Any) -> Any:
    """Each call has to move a scheduler on, which is plain Python: the host does it."""
    patch_schedulers()
    return restore_schedulers


def patch_schedulers() -> None:
    """Make every scheduler class that exists by now run on the host in a trace."""
    for kind in _schedulers():
        step = vars(kind).get("step")
        if step is not None and not hasattr(step, "_torch_jax_original"):
            kind.step = _on_host(step)


def restore_schedulers() -> None:
    """Take back what :func:`patch_schedulers` did."""
    for kind in _schedulers():
        kind.step = getattr(kind.step, "_torch_jax_original", kind.step)


def _schedulers() -> Iterator[Any]:
    """The classes that define how a scheduler steps."""
    kinds: list[Any] = [LRScheduler, ReduceLROnPlateau]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if "step" in vars(kind):
            yield kind


def _on_host(original: Any) -> Any:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ACTIVE.tracer is None:
            return original(self, *args, **kwargs)
        args, kwargs = pytree.tree_map(numbers.pinned_value, (args, kwargs))
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
