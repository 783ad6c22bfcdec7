"""The state of optimizers: made before a call looks at it, so that all steps are alike.

An optimizer makes its state in its first step. Recorded unchanged, that step would be a program of
its own, and each optimizer would be compiled twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from torch_jax.capture.cpu_tensors import is_host
from torch_jax.core import numbers
from torch_jax.core.active import ACTIVE
from torch_jax.memory.storage import is_jax


def init_group(optimizer: Any, original: Any, group: dict, *lists: Any, **named: Any) -> Any:
    """Call the ``original`` ``_init_group`` of an optimizer, whose new state is seen as older."""
    states = optimizer.state
    known = {id(value) for state in states_of(optimizer).values() for value in state.values()}
    result = original(group, *lists, **named)
    _make_momentum(optimizer, group, lists)
    for parameter in group["params"]:
        for value in states.get(parameter, {}).values():
            if isinstance(value, torch.Tensor) and is_jax(value) and id(value) not in known:
                ACTIVE.observer.takes_over(value)
    return result


def keep_steps_on_device(optimizer: Any) -> None:
    """Let ``capturable`` optimizers count steps on the device, so that the host reads no count."""
    for group in optimizer.param_groups:
        if group.get("capturable") is False and all(map(is_jax, group["params"])):
            group["capturable"] = True
    move_counts(optimizer)


def move_counts(optimizer: Any) -> None:
    """Move counts of steps that are on the CPU, as code sets them again, where they have to be."""
    for group in optimizer.param_groups:
        is_due = group.get("capturable") is True and all(map(is_jax, group["params"]))
        for parameter in group["params"] if is_due else ():
            state = optimizer.state.get(parameter, {})
            for key in ("step", "mu_product", "eta", "mu"):
                if is_host(state.get(key)):
                    state[key] = state[key].to(parameter.device)
                    if ACTIVE.observer is not None:
                        ACTIVE.observer.takes_over(state[key])


def _make_momentum(optimizer: Any, group: dict, lists: Any) -> None:
    """Make SGD's momentum buffers, of zeros, where its first step has no dampening to leave out."""
    if type(optimizer) is not torch.optim.SGD or not lists or numbers.plain(group["dampening"]):
        return
    buffers = lists[-1]
    with_gradient = [p for p in group["params"] if p.grad is not None]
    for index, parameter in enumerate(with_gradient[: len(buffers)]):
        if buffers[index] is None:
            buffers[index] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            optimizer.state[parameter]["momentum_buffer"] = buffers[index]


def states_of(optimizer: Any) -> dict[int, dict]:
    """Return the states of parameters by their ids, and by the optimizer's own id all of it."""
    inner = {id(p): one for p, one in optimizer.state.items() if isinstance(one, dict)}
    return {id(optimizer): optimizer.state, **inner}


def saved(dicts: Iterable[dict]) -> Callable[[], None]:
    """Return a function that gives dicts back the entries that they have now."""
    before = [(one, dict(one)) for one in dicts]

    def restore() -> None:
        for one, entries in before:
            one.clear()
            one.update(entries)

    return restore
