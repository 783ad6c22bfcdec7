"""The state of optimizers: made before a trace looks at it, so that all steps are alike.

An optimizer makes its state in its first step. Traced as it is, that step would be a program of
its own, and each optimizer would be compiled twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_jax.capture.capture import paused
from torch_jax.capture.host.cpu_tensors import is_host
from torch_jax.capture.state.places import DictEntry
from torch_jax.core.numbers import Number
from torch_jax.memory import sharding
from torch_jax.memory.storage import is_jax

_LIKE = frozenset(
    getattr(torch.ops.aten, f"{name}_like") for name in ("zeros", "ones", "full", "empty")
)


def init_group(
    capture: Any,
    note: Callable[..., None],
    optimizer: Any,
    original: Any,
    group: dict,
    *lists: Any,
    **named: Any,
) -> Any:
    """The ``original`` ``_init_group`` of an optimizer, its new state made outside the trace.

    ``note`` takes each place in the state that the step relies on.
    """
    missing = [p for p in group["params"] if p.grad is not None and not optimizer.state.get(p)]
    for parameter in missing:
        capture.undo.append(functools.partial(optimizer.state.pop, parameter, None))
    kept = [(values, len(values)) for values in lists if isinstance(values, list)]
    try:
        with _as_before(capture, missing), paused(), _Forms():
            result = original(group, *lists, **named)
            _make_momentum(optimizer, group, lists)
    except Exception:  # the first state depends on gradients: two programs then, not one
        for values, length in kept:
            del values[length:]
        for parameter in missing:
            optimizer.state.pop(parameter, None)
            note(DictEntry, optimizer.state, parameter, "an optimizer's state")
        return original(group, *lists, **named)
    for parameter in group["params"]:
        for key in optimizer.state.get(parameter, ()):
            label = f"{type(optimizer).__name__}'s {key}"
            note(DictEntry, optimizer.state[parameter], key, label)
    return result


@contextmanager
def _as_before(capture: Any, tensors: list[torch.Tensor]) -> Iterator[None]:
    """Tensors hold what they held before the trace."""
    changed = []
    for tensor in tensors:
        entry = capture.input_of(tensor.untyped_storage())
        if entry is not None:
            changed.append((entry.source, entry.source.array))
            entry.source.array = entry.array
    try:
        yield
    finally:
        for storage, array in changed:
            storage.array = array


class _Forms(TorchDispatchMode):
    """Makes ``zeros_like`` and its kin from sizes and strides: the values may be traced."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _LIKE:
            old, *rest = args
            form = old.shape, old.stride()
            args = torch.empty_strided(*form, dtype=old.dtype, device=old.device), *rest
            made = func(*args, **(kwargs or {}))
            if sharding.Use.begun:
                sharding.follow(made, old)
            return made
        return func(*args, **(kwargs or {}))


def keep_steps_on_device(optimizer: Any, undo: list[Any]) -> None:
    """Let optimizers that can count their steps on the device, so that the host reads no count.

    See ``capturable`` at https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html.
    """
    for group in optimizer.param_groups:
        if group.get("capturable") is False and all(map(is_jax, group["params"])):
            group["capturable"] = True
            undo.append(functools.partial(group.__setitem__, "capturable", False))
    move_counts(optimizer, undo)


def move_counts(optimizer: Any, undo: list[Any]) -> None:
    """Move counts of steps that are on the CPU to the device, where they have to be.

    Whoever sets one anew does so on the CPU, as PyTorch makes them, and knows nothing of
    ``capturable``, with which an optimizer refuses counts on the CPU.
    """
    for group in optimizer.param_groups:
        if group.get("capturable") is True and all(map(is_jax, group["params"])):
            for parameter in group["params"]:
                _move_counts_of(parameter, optimizer.state.get(parameter, {}), undo)


def _move_counts_of(parameter: torch.Tensor, state: dict, undo: list[Any]) -> None:
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
