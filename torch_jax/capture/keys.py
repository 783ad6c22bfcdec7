"""The key of a call: what a program fixes of the arguments and of the world around them.

Two calls with equal keys may run the same program, if their tensors have the same forms, which
:mod:`torch_jax.capture.forms` compares. Keys are made of tuples, so that they hash and compare in
C; the names of their fields cost something only where a difference is explained.
"""

from __future__ import annotations

import functools
import operator
import re
import weakref
from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple

import jax
import torch

from torch_jax import config
from torch_jax._private import jax_core, pytorch
from torch_jax.core import precision
from torch_jax.environment import overrides, regions


class CallKey(NamedTuple):
    """The part of one call that a program fixes, beside the forms of tensors."""

    form: Any  # the tree of the arguments
    world: tuple  # modes and settings, in the order of ``WORLD``
    leaves: tuple[Any, ...]  # a key for each leaf; of a tensor ``TENSOR``


TENSOR = "a tensor"


class ValueKey(NamedTuple):
    """A Python value that is a constant of the program; of floats ``repr``, which shows -0.0."""

    kind: type
    value: Any

    def __str__(self) -> str:
        return str(self.value)


class ArrayArgument(TypeError):
    """A NumPy array is an argument: no key holds its values, so Python has to run."""


class _ById:
    """Represents in a key one object, and no other that is equal to it."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Any):
        self._hash = id(value)
        try:
            self._value: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._value = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        value = self._value()
        return isinstance(other, _ById) and value is not None and value is other._value()

    def __str__(self) -> str:
        return str(self._value())


# A NamedTuple's own constructor is a Python function, which costs some microseconds a call.
_named = tuple.__new__


def call_key(form: Any, leaves: list[Any]) -> CallKey:
    """Return the key of a call with these leaves."""
    keys = [TENSOR if isinstance(leaf, torch.Tensor) else leaf_key(leaf) for leaf in leaves]
    return _named(CallKey, (form, world(), tuple(keys)))


def leaf_key(leaf: Any) -> Any:
    """Return what a program fixes of one leaf of the arguments that is no tensor.

    >>> leaf_key(0.5)
    ValueKey(kind=<class 'float'>, value='0.5')
    """
    kind = type(leaf)
    if kind is float or kind is complex:
        return _named(ValueKey, (kind, repr(leaf)))  # equal for two nans, not for 0.0 and -0.0
    if kind in _VALUES:
        return _named(ValueKey, (kind, leaf))
    if kind.__module__ == "numpy" and getattr(leaf, "ndim", None):
        raise ArrayArgument(
            "a NumPy array cannot be an argument of a function under torch_jax.jit(pure=True), "
            "which would fix its values: pass torch.from_numpy(x), or drop pure=True"
        )
    # one object: others that are equal to it need not do the same
    return _named(ValueKey, (kind, _ById(leaf)))


# Classes whose equal instances are interchangeable.
_VALUES = frozenset(
    (int, bool, str, bytes, NoneType, range, torch.dtype, torch.device, torch.Size, torch.layout,
     torch.memory_format)
)  # fmt: skip


def _autocast(device: str) -> Any:
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)


# Modes and settings that change what the same code does.
WORLD: dict[str, Callable[[], Any]] = {
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "the default dtype": torch.get_default_dtype,
    "autocast on jax": functools.partial(_autocast, "jax"),
    "autocast on cpu": functools.partial(_autocast, "cpu"),
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "the default device": pytorch.default_device,
    "a setting of torch_jax": config.version,
    "the precision of float32 products": precision.with_switch,
    "the environment": regions.is_enabled,
    "an override": overrides.state,
    "anomaly mode": torch.is_anomaly_enabled,
    "the cache of autocast": torch.is_autocast_cache_enabled,
}
_READ = list(WORLD.values())


def world() -> tuple:
    """Return the modes and settings in force, in the order of ``WORLD``."""
    return tuple(map(operator.call, _READ))


def difference(old: CallKey, new: CallKey) -> str:
    """Return what differs between the keys of two calls, in words.

    >>> one, two = (call_key(None, [n]) for n in (1, 2))
    >>> difference(one, two)
    'argument 0 was 1, now it is 2'
    """
    if old.form != new.form:
        return _other_form(old.form, new.form)
    for name, was, now in zip(WORLD, old.world, new.world, strict=True):
        if was != now:
            return f"{name} was {was}, now it is {now}"
    for index, (was, now) in enumerate(zip(old.leaves, new.leaves, strict=True)):
        if was != now:
            return f"argument {index} was {was}, now it is {now}"
    return "other arguments"


def _other_form(old: Any, new: Any) -> str:
    """Say where the trees of two calls' arguments differ.

    >>> import jax
    >>> one, two = (jax.tree.structure(((), {"mask": mask})) for mask in (None, 1))
    >>> _other_form(one, two)
    "argument ['mask']: NoneType before, pytree leaf now (their Python types differ)"
    """
    for path, was, now, why in jax_core.structure_differences(old, new):
        names = "the positional arguments", "the keyword arguments"
        name = f"argument {jax.tree_util.keystr(path[1:])}" if path[1:] else names[path[0].idx]
        text = f"{name}: {was} before, {now} now ({why})"
        return re.sub(r"<class '([\w.]+)'>", r"\1", text)
    return "the arguments are nested in another way"
