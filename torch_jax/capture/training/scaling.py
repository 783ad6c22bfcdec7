"""``torch.amp.GradScaler`` inside a function whose Python is skipped.

``scaler.step(optimizer)`` looks whether a gradient was infinite, and skips the step if so. A
program cannot look: there the step is always made, and for each storage that it wrote the program
chooses between what it held before and what the step put there.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.capture.training.optimizers import keep_steps_on_device, saved, states_of
from torch_jax.core.active import ACTIVE
from torch_jax.core.patching import AT_FIRST_JIT, around
from torch_jax.core.tracers import NotTraceableError
from torch_jax.memory.storage import is_jax

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
    keep_steps_on_device(optimizer)  # as a step does, before its entries are looked at
    storages = observer.storages.all()  # they stay, and with them their ids
    before = {id(memory): memory.array for memory in storages}
    entries = {id(one): dict(one) for one in _dicts_of(optimizer)}
    restore = saved(_dicts_of(optimizer))
    observer.makes_state, made_before = False, observer.makes_state
    result = optimizer.step(*args, **kwargs)
    why = _why_not_skipped(optimizer, _set_by_step(optimizer, entries), observer.makes_state)
    if why is not None:
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


def _set_by_step(optimizer: Any, before: dict[int, dict]) -> str | None:
    """Return the key of an entry that is another object now, or new and no tensor or dict."""
    for one in _dicts_of(optimizer):
        known = before.get(id(one), {})
        for key, value in one.items():
            is_new = key not in known and isinstance(value, (torch.Tensor, dict))
            if not is_new and value is not known.get(key, one):
                return key
    return None


def _why_not_skipped(optimizer: Any, key: str | None, makes_state: bool) -> str | None:
    """Return why the device cannot skip a step that set an entry, or made its state; or None."""
    name = type(optimizer).__name__
    if makes_state:  # its state is new: there is none to go back to
        return (
            f"the first step of {name} makes its state out of gradients, and GradScaler.step may "
            "skip it: take it outside of the function, or drop pure=True."
        )
    if key is None:
        return None
    return (
        f"a step of {name} sets its {key!r} on the host, where a program does not know that "
        "GradScaler.step skips one. Pass capturable=True to the optimizer if it has that, or drop "
        "pure=True."
    )
