"""Which values are understood: those of exact types whose reads are guarded and effects repeated.

A value of any other type may answer otherwise at the next call, by code that nobody sees run: C's
(iterators, files, arrays, a subclass of ``dict``), or that of a hook (``__getattribute__``).
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import os
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.torch_version import TorchVersion

from torch_jax.capture.state import attribute_hooks
from torch_jax.capture.state.bytecode import HOOK, file_of, is_watched_file
from torch_jax.capture.state.known_calls import is_known_builtin, owner_of
from torch_jax.core.numbers import NUMBERS

_PLAIN = frozenset(
    (int, float, complex, bool, str, bytes, types.NoneType, range, slice, types.EllipsisType,
     types.NotImplementedType, torch.dtype, torch.device, torch.Size, torch.layout,
     torch.memory_format, torch.finfo, torch.iinfo, types.CodeType, TorchVersion)
)  # fmt: skip
_SENTINELS = tuple(
    type(vars(dataclasses)[name])
    for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")
    if name in vars(dataclasses)
)
_CONTAINERS = frozenset((list, dict, set, frozenset, tuple, OrderedDict, defaultdict, deque))
_TUPLE_GETTER = type(namedtuple("_One", "field").field)  # type: ignore[attr-defined]
_FUNCTIONS = frozenset(
    (types.FunctionType, types.MethodType, functools.partial, staticmethod, classmethod, property,
     operator.attrgetter, operator.itemgetter, logging.Logger, logging.RootLogger,
     types.ModuleType, types.SimpleNamespace, _TUPLE_GETTER,
     types.MemberDescriptorType, types.GetSetDescriptorType,
     type(os.environ))  # what it holds is noted where code names it
)  # fmt: skip
_BUILTINS = frozenset(
    (types.BuiltinFunctionType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
)
_SHARDINGS = frozenset((Mesh, NamedSharding, PartitionSpec))  # of JAX, and never changed
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))

# Classes that a function may call, or test values for: what they make is understood too.
_ITERATORS = frozenset(
    (zip, map, filter, enumerate, reversed, *(
        value for value in vars(itertools).values()
        if isinstance(value, type) and value is not itertools.tee
    ))
)  # fmt: skip
_CLASSES = (
    _PLAIN
    | _CONTAINERS
    | _FUNCTIONS
    | _ITERATORS
    | {object, type, super, memoryview}
    | {operator.itemgetter}
    | {value for value in vars(builtins).values() if isinstance(value, type)}
) - {bytearray, memoryview}
# Metaclasses that do nothing when an instance is made or an attribute is read.
_METACLASSES = frozenset((type, enum.EnumMeta))
_METACLASS_MODULES = ("abc", "pybind11_builtins", "torch._opaque_base")
# Hooks that decide what another piece of code reads. Those of writing are code that is seen to run,
# and so is a ``__getattr__`` that is written as one.
_HOOKS = ("__getattr__", "__getattribute__", "__eq__", "__hash__", "__del__", "__instancecheck__")
# Parts of PyTorch whose objects are known as what they are; a module's own hooks are among them.
_BASES = (
    "torch.nn.", "torch.optim.", "torch.distributions.", "torch.amp.", "torch.autograd.",
    "torch.cuda.amp.", "torch._C", "torch.utils.checkpoint", "torch.utils._contextlib",
    "torch.return_types", "torch_jax.", "torch._ops", "torch.func", "torch.backends",
    "torch.overrides", "torch._opaque_base", "torch._VF", "torch._classes", "torch.jax",
    "torch._dynamo", "torch.distributed.algorithms.join",
    "torch.distributed.distributed_c10d",
)  # fmt: skip
_NOT_UNDERSTOOD_IN_TORCH = ("ScriptModule", "LazyModuleMixin", "UninitializedTensorMixin")


def why_not(value: Any, is_passed_on: bool = True) -> str | None:
    """Why a value is not understood, None where it is.

    ``is_passed_on`` is whether a builtin may be called where no call is seen.

    >>> why_not({}), why_not(iter([]))
    (None, 'is a list_iterator, of a class that is not understood')
    """
    kind: Any = type(value)
    if kind in _PLAIN or kind in _CONTAINERS or kind in _TENSORS or kind in NUMBERS:
        return None
    if kind in _BUILTINS:
        known = not _is_bound(value) and (not is_passed_on or is_known_builtin(value))
        return None if known else f"is the builtin {getattr(value, '__qualname__', value)}"
    if kind in _FUNCTIONS or kind in _SHARDINGS or kind in _SENTINELS:
        return None
    if isinstance(value, type):
        found: Any = value
        return why_not_class(found)
    return _why_not_instance(kind)


def forget_classes() -> None:
    """Look at classes anew: they may have got hooks since."""
    why_not_class.cache_clear()
    _why_not_instance.cache_clear()


def _is_bound(builtin: Any) -> bool:
    """Whether a builtin is a method with its object, such as ``d.get``, which nobody watches."""
    owner = owner_of(builtin)
    kind: Any = type(owner)
    return not (owner is None or isinstance(owner, types.ModuleType | type) or _is_torchs(kind))


@functools.lru_cache(4096)
def why_not_class(kind: Any) -> str | None:
    """Why a class is not understood: calling it may run code that nobody sees."""
    if kind in _CLASSES or issubclass(kind, BaseException):
        return None
    if _is_torchs(kind) or _is_made_in_sight(kind):
        return None
    return _why_not_instance(kind)


def _is_made_in_sight(kind: Any) -> bool:
    """Whether a class of tensors, or of PyTorch's, is made by Python, which is seen to run."""
    new = vars(kind).get("__new__")
    if issubclass(kind, torch.Tensor) and isinstance(new, staticmethod) and _is_users(kind):
        return True
    python = types.FunctionType, staticmethod
    makers = [vars(kind).get(name) for name in ("__new__", "__init__")]
    is_torchs = f"{kind.__module__}.".startswith("torch.")
    return is_torchs and any(isinstance(maker, python) for maker in makers)


@functools.lru_cache(4096)
def _why_not_instance(kind: Any) -> str | None:
    if not _is_known_metaclass(type(kind)):
        return f"is of a class with the metaclass {type(kind).__name__}"
    name = f"is a {kind.__qualname__}"
    if getattr(kind, "__torch_jax_compiled__", False):
        return None
    if isinstance(kind, enum.EnumMeta):
        return _why_not_enum(kind)
    if _is_named_tuple(kind):
        return None
    if str(kind.__module__).startswith(_KNOWN_LIBRARIES):
        return None
    for base in kind.__mro__:
        if base is object or _is_torchs(base) or (base is types.ModuleType and _is_torchs(kind)):
            if base.__name__ in _NOT_UNDERSTOOD_IN_TORCH:
                return f"{name}, a {base.__name__}"
            if base is torch.Tensor or issubclass(base, torch.Tensor):
                return f"{name}, a subclass of torch.Tensor"
            continue
        why = _why_not_base(base)
        if why is not None:
            return f"{name}, {why}"
    return None


def _is_known_metaclass(kind: Any) -> bool:
    return kind in _METACLASSES or _is_torchs(kind) or kind.__module__ in _METACLASS_MODULES


def _why_not_base(base: Any) -> str | None:
    if base.__module__ in _EMPTY:
        return None
    if not base.__flags__ & _HEAP or not _is_users(base):
        return "of a class that is not understood"
    own = [hook for hook in _HOOKS if hook in vars(base) and not _is_harmless(base, hook)]
    return f"whose class has a {own[0]} of its own" if own else None


def _is_harmless(base: Any, hook: str) -> bool:
    """Whether a hook is what Python makes: ``__hash__ = None``, ``__eq__`` of dataclasses."""
    value = vars(base)[hook]
    if value is None or (hook == HOOK and attribute_hooks.is_understood(value)):
        return True
    file = getattr(getattr(value, "__code__", None), "co_filename", "")
    return (
        hook in ("__eq__", "__hash__")
        and "__dataclass_fields__" in vars(base)
        and (file == "<string>" or file.endswith(("reprlib.py", "dataclasses.py")))
    )


def _why_not_enum(kind: Any) -> str | None:
    mixed = [base for base in kind.__mro__ if base not in (object, int, str, float, kind)]
    plain = all(isinstance(base, enum.EnumMeta) or base is enum.ReprEnum for base in mixed)
    own = [hook for hook in _HOOKS if hook in vars(kind) and hook not in ("__hash__",)]
    own = [hook for hook in own if hook in ("__getattr__", "__eq__", "__getattribute__")]
    return None if plain and not own else f"is a {kind.__qualname__}, an enum of its own kind"


def is_users_object(value: Any) -> bool:
    """Whether a value is an object of a user's class, with none of PyTorch's among its bases."""
    kind: Any = type(value)
    return _is_users(kind) and not any(_is_torchs(base) for base in kind.__mro__)


def _is_named_tuple(kind: Any) -> bool:
    return kind.__bases__ == (tuple,) and (
        hasattr(kind, "_fields") or kind.__module__ == "torch.return_types"
    )


def _is_users(kind: Any) -> bool:
    """Whether a class was made by Python code that is watched, or that cannot do anything."""
    return is_watched_file(file_of(kind))


@functools.lru_cache(4096)
def _is_torchs(kind: Any) -> bool:
    """Whether a class is PyTorch's own, or of another library that is known as well."""
    if kind.__module__ == "torch":
        return True
    return f"{kind.__module__}.".startswith((*_BASES, *_KNOWN_LIBRARIES))


# Modules of bases that do nothing.
_EMPTY = ("abc", "typing", "contextlib", "collections.abc")
# Its configurations and outputs are known: plain attributes, some of which have a second name.
_KNOWN_LIBRARIES = ("transformers.",)
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by Python, as a rule
