"""The key of a call, and the forms of its tensors: what a program fixes of the call.

Two calls with equal keys may run the same program, if their tensors have the same :class:`Forms`.
Keys are made of tuples, so that they hash and compare in C; the names of their fields cost
something only where a difference is explained. Types, shapes, strides, dtypes and ``requires_grad``
of all tensors PyTorch compares in C++; the rest of their forms is compared as lists.
"""

from __future__ import annotations

import functools
import operator
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from types import NoneType
from typing import Any, NamedTuple

import jax
import torch

from torch_jax import config
from torch_jax._private import dynamo, jax_core, pytorch
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


def _seeks_nan() -> bool:
    """Return whether a backward pass looks for NaN; AOTAutograd's traces turn the rest on and off.

    The flag is one for all threads.
    """
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


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
    "anomaly mode": _seeks_nan,
    "the cache of autocast": torch.is_autocast_cache_enabled,
}


def world() -> tuple:
    """Return the modes and settings in force, in the order of ``WORLD``."""
    return tuple(map(operator.call, WORLD.values()))


def difference(old: CallKey, new: CallKey) -> str:
    """Return what differs between the keys of two calls, in words.

    >>> one, two = (call_key(None, [n]) for n in (1, 2))
    >>> difference(one, two)
    'argument 0 was 1, now it is 2'
    """
    if old.form != new.form:
        return _other_form(old.form, new.form)
    before, after = ((*key.world, *key.leaves) for key in (old, new))
    return _change(before, after, WORLD) or "other arguments"


def _change(old: Sequence[Any], new: Sequence[Any], names: Iterable[str] = ()) -> str | None:
    """Say which thing changed first: one of those with ``names``, or of the arguments behind."""
    every = zip(chain(names, map("argument {}".format, count())), old, new, strict=False)
    changes = (f"{name} was {was}, now it is {now}" for name, was, now in every if was != now)
    return next(changes, None)


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
        return re.sub(r"<class '([\w.]+)'>", r"\1", f"{name}: {was} before, {now} now ({why})")
    return "the arguments are nested in another way"


_offset = torch.Tensor.storage_offset
_is_leaf, shape_of = operator.attrgetter("is_leaf"), operator.attrgetter("shape")


class Rest(NamedTuple):
    """The properties of a call's tensors that PyTorch does not compare."""

    aliases: list[int] | None  # where each memory, and each tensor, is met first, if some share
    shapes: list[tuple[int, ...]]  # of the memories
    dtypes: list[Any]  # of the memories
    offsets: list[int]
    are_leaves: list[bool]
    attributes: list[tuple]  # types and names of attributes, of subclasses and parameters


def rest_of(tensors: Sequence[torch.Tensor], storages: Sequence[Any], memories: list[Any]) -> Rest:
    """Return these properties of a call's tensors."""
    held = [one for one in memories if one is not None]
    attributes = [(type(one), *vars(one)) for one in tensors if type(one) is not torch.Tensor]
    fields = (
        _aliases(tensors, storages), list(map(shape_of, held)), [one.dtype for one in held],
        list(map(_offset, tensors)), list(map(_is_leaf, tensors)), attributes,
    )  # fmt: skip
    return tuple.__new__(Rest, fields)


def _aliases(tensors: Sequence[torch.Tensor], storages: Sequence[Any]) -> list[int] | None:
    ids = list(map(id, storages))
    if len(set(ids)) == len(ids):
        return None
    first: dict[int, int] = {}
    return [first.setdefault(one, at) for at, one in enumerate((*ids, *map(id, tensors)))]


def _each_once(call: Any) -> list[torch.Tensor]:
    """Return a call's tensors, each once, as PyTorch wants them."""
    if call.rest.aliases is None:
        return call.tensors
    return list({id(tensor): tensor for tensor in call.tensors}.values())


class Forms:
    """The forms of the tensors of one call."""

    def __init__(self, call: Any):
        self._have_forms = dynamo.tensor_guards(_each_once(call))
        self._rest, self._shown = call.rest, _shown(call)

    def fit(self, call: Any) -> bool:
        """Return whether a call of the same key has tensors of these forms."""
        return self._rest == call.rest and self._have_forms(*_each_once(call))

    def difference(self, call: Any) -> str:
        """Return how a call's tensors differ, in words."""
        return _change(self._shown, _shown(call)) or (
            "other arguments share memory with one another"
            if self._rest.aliases != call.rest.aliases
            else "a tensor among the arguments has another type, or other attributes"
        )


def _shown(call: Any) -> list[str]:
    """Return a text for each leaf that is a tensor, and an empty one for others."""
    return [_text(leaf) if isinstance(leaf, torch.Tensor) else "" for leaf in call.leaves]


def _text(tensor: torch.Tensor) -> str:
    memory: Any = getattr(tensor.untyped_storage(), "array", None)
    dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
    text = f"{dtype}{shape}"
    if not tensor.is_contiguous() or (memory is not None and tensor.shape != memory.shape):
        text += f" with strides {list(tensor.stride())} at {tensor.storage_offset()}"
        text += "" if memory is None else f" in memory {list(memory.shape)}"
    return text + ", which requires gradients" * tensor.requires_grad
