"""Puts another function where PyTorch and loaded modules refer to one of PyTorch's callables.

A ``TorchFunctionMode`` would see calls on one thread only, and slow down all of them. So a callable
is replaced by name: in PyTorch's public modules, on ``torch.Tensor``, and in every other loaded
module that holds it (``from torch.nn.functional import gelu``). PyTorch's private modules keep the
original.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from torch_jax._private import dynamo, pytorch

Place = tuple[Any, str]

_KEPT = ("torch._", "torch_jax", "torch.overrides", "torch.utils._device")

STAND_INS: dict[Callable[..., Any], Callable[..., Any]] = {}  # replacements, and their originals


def replace_all(makers: dict[Callable[..., Any], Callable[[Any], Any]]) -> None:
    """Put what a callable's maker returns for it in all places of the callable."""
    for original, at in places(list(makers)).items():
        replace(at, wrapper_of(original, at, makers[original](original)))


def wrapper_of(
    original: Callable[..., Any], at: list[Place], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return ``function`` with the documentation of ``original``, named as its first place."""
    wrapped = functools.wraps(original)(dynamo.unseen(function))
    owner, wrapped.__name__ = at[0]
    is_module = isinstance(owner, types.ModuleType)
    wrapped.__module__ = owner.__name__ if is_module else owner.__module__
    wrapped.__qualname__ = at[0][1] if is_module else f"{owner.__name__}.{at[0][1]}"
    pytorch.script_as_well({original: wrapped})
    STAND_INS[wrapped] = original
    return wrapped


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute by what ``make`` returns for it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(dynamo.unseen(make(original))))


def asking(
    is_asked: Callable[[], bool], serve: Callable[..., Any]
) -> Callable[[Any], Callable[..., Any]]:
    """Return a maker of functions that ask: ``serve`` takes the original and the call, if so."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_asked():
                return serve(original, *args, **kwargs)
            return original(*args, **kwargs)

        return call

    return make


_known: dict[Callable[..., Any], tuple[int, list[Place]]] = {}


def places_of(original: Callable[..., Any]) -> list[Place]:
    """Return the places of one callable; they are found again when modules were imported since."""
    count, found = _known.get(original, (0, []))
    if count != len(sys.modules):
        found = places([original]).get(original, [])
        _known[original] = len(sys.modules), found
    return found


def places(callables: list[Callable[..., Any]]) -> dict[Callable[..., Any], list[Place]]:
    """Return the places of callables: pairs of a module, or ``torch.Tensor``, and a name.

    >>> places([torch.relu])[torch.relu][0][1]
    'relu'
    """
    wanted = {id(one): one for one in callables}
    found: dict[Callable[..., Any], list[Place]] = {}
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or name.startswith(_KEPT):
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in wanted:
                found.setdefault(wanted[id(value)], []).append((module, attribute))
    for one in callables:
        method = getattr(one, "__name__", "")
        if getattr(torch.Tensor, method, None) is one:
            found.setdefault(one, []).append((torch.Tensor, method))
    # PyTorch's own names first: a wrapper takes its name from the first
    for known in found.values():
        known.sort(key=lambda place: not place[0].__name__.startswith("torch"))
    return found


def replace(at: list[Place], function: Any) -> None:
    """Put ``function`` in these places."""
    for owner, name in at:
        setattr(owner, name, function)


def restore(at: list[Place], original: Any, replaced: Any) -> None:
    """Put ``original`` back at places that still have ``replaced``."""
    for owner, name in at:
        if getattr(owner, name, None) is not replaced:
            continue
        inherited = (vars(base)[name] for base in torch.Tensor.__mro__[1:] if name in vars(base))
        if owner is torch.Tensor and next(inherited, None) is original:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
