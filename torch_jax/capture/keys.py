"""The key of a call: what a program fixes of the arguments and of the world around them.

Two calls with equal keys may run the same program. Keys are made of tuples, so that they hash and
compare in C; the names of their fields cost something only where a difference is explained.
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
from torch_jax.memory.storage import is_jax


class CallKey(NamedTuple):
    """The part of one call that a program fixes."""

    form: Any  # the tree of the arguments
    world: tuple  # modes and settings, in the order of ``WORLD``
    aliases: tuple[int, ...] | None  # where the memory of each tensor is met first, if some share
    leaves: tuple[Any, ...]  # a key for each leaf


class TensorKey(NamedTuple):
    """A device tensor; of a view the shape, the strides and the offset, too, and ``is_neg``."""

    memory_shape: tuple[int, ...]
    dtype: torch.dtype
    memory_dtype: Any
    nature: Any
    is_conj: bool
    view: tuple[tuple[int, ...], tuple[int, ...], int, bool] | None

    def __str__(self) -> str:
        if self.view is None:
            return _shown(self.dtype, self.memory_shape)
        shape, stride, offset, _ = self.view
        shown = f"{_shown(self.dtype, shape)} with strides {list(stride)} at {offset}"
        return f"{shown} in memory {list(self.memory_shape)}"


class HostTensorKey(NamedTuple):
    """A CPU tensor, or one of another device: its values are read at each call."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stride: tuple[int, ...]
    nature: Any

    def __str__(self) -> str:
        return _shown(self.dtype, self.shape)


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


# --- making keys ----------------------------------------------------------------------------------

# A NamedTuple's own constructor is a Python function, which costs some microseconds a call.
_named = tuple.__new__


def call_key(form: Any, leaves: list[Any]) -> CallKey:
    """Return the key of a call with these leaves."""
    return _named(CallKey, (form, world(), _aliases(leaves), tuple(map(leaf_key, leaves))))


def leaf_key(leaf: Any) -> Any:
    """Return what a program fixes of one leaf of the arguments.

    >>> leaf_key(torch.ones(2, 3, device="jax")).memory_shape, leaf_key(0.5)
    ((2, 3), ValueKey(kind=<class 'float'>, value='0.5'))
    """
    if isinstance(leaf, torch.Tensor):
        if not is_jax(leaf):
            key: tuple = leaf.shape, leaf.dtype, leaf.device, leaf.stride(), _nature(leaf)
            return _named(HostTensorKey, key)
        memory: Any = leaf.untyped_storage().array  # type: ignore[attr-defined]
        offset, is_neg, view = leaf.storage_offset(), leaf.is_neg(), None
        plain = leaf.shape == memory.shape and leaf.is_contiguous() and 1 not in leaf.shape
        if not plain or offset or is_neg:
            view = leaf.shape, leaf.stride(), offset, is_neg
        key = memory.shape, leaf.dtype, memory.dtype, _nature(leaf), leaf.is_conj(), view
        return _named(TensorKey, key)
    kind = type(leaf)
    if kind is float or kind is complex:
        return _named(ValueKey, (kind, repr(leaf)))  # equal for two nans, not for 0.0 and -0.0
    if kind in _VALUES:
        return _named(ValueKey, (kind, leaf))
    if type(leaf).__module__ == "numpy" and getattr(leaf, "ndim", None):
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


def _nature(tensor: torch.Tensor) -> Any:
    """Return whether a tensor requires gradients; of a subclass or Parameter its kind, too."""
    requires_grad = tensor.requires_grad
    if type(tensor) is torch.Tensor and not requires_grad and not tensor.__dict__:
        return False
    return type(tensor), requires_grad, tensor.is_leaf, tuple(tensor.__dict__)


def _aliases(leaves: list[Any]) -> tuple[int, ...] | None:
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    ids = [id(leaf.untyped_storage()) for leaf in tensors]
    if len(set(ids)) == len(ids):
        return None
    first: dict[int, int] = {}
    of_storages = tuple(first.setdefault(one, at) for at, one in enumerate(ids))
    return of_storages + tuple(first.setdefault(id(t), at) for at, t in enumerate(tensors))


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


# --- comparing and explaining them ----------------------------------------------------------------


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
    if old.aliases != new.aliases:
        return "other arguments share memory with one another"
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


def _shown(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}".removeprefix("torch.")
