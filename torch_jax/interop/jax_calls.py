"""Calls of JAX functions: arguments sorted, and the trace that serves them found or made.

A function is traced for each form of its arguments, and again when something that it reads is
another value (:mod:`torch_jax.interop.function_state`). Where that cannot be told it is traced at
each call, and compiled again where the trace is another one
(:mod:`torch_jax.interop.same_program`).
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax.core import numbers, trees, waking
from torch_jax.dispatch import call_jax as operator
from torch_jax.dispatch.call_jax import Given, Recent, Traced
from torch_jax.interop import function_errors, proven
from torch_jax.interop.function_state import state_of
from torch_jax.interop.same_program import same_program
from torch_jax.memory import dtypes, storage
from torch_jax.memory.storage import is_jax

_GIVEN = Given()


def call(function: Any, wide: bool | None, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a JAX function; ``wide``: whether 64-bit types are on, None: as the arguments say."""
    waking.wake()
    leaves, structure = trees.flatten((args, kwargs))
    given = sort(function, leaves)
    return traced_for(function, wide, structure, given)(given.tensors)


# --- arguments ------------------------------------------------------------------------------------


class Arguments(NamedTuple):
    """The leaves of a call: those that are static, with what stands for the others, in order."""

    static: tuple[Any, ...]
    tensors: list[torch.Tensor]


def sort(function: Any, leaves: Sequence[Any]) -> Arguments:
    """Tell arrays from what is static."""
    static: list[Any] = []
    tensors: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if not (is_jax(leaf) or (leaf.dim() == 0 and leaf.device.type == "cpu")):
                raise function_errors.another_device(function, leaf)
            static.append(_GIVEN)
            tensors.append(leaf)
        elif isinstance(leaf, jax.Array | np.ndarray):
            marker, tensor = _of_array(leaf)
            static.append(marker)
            tensors.append(tensor)
        elif isinstance(leaf, torch.SymFloat):
            static.append(numbers.fixed(leaf))
        else:
            static.append(dtypes.to_jax(leaf) if isinstance(leaf, torch.dtype) else leaf)
    return Arguments(tuple(static), tensors)


def _of_array(array: Any) -> tuple[Given, torch.Tensor]:
    """What stands for an array, and a tensor over it; of NumPy's a copy, which nobody writes."""
    if isinstance(array, np.ndarray):
        return _GIVEN, storage.wrap(jnp.asarray(array))
    if not jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return _GIVEN, storage.wrap(array)
    implementation = str(jax.random.key_impl(array))
    return Given(implementation), storage.wrap(jax.random.key_data(array))


# --- traces ---------------------------------------------------------------------------------------

# The traces of a function hang on its code, so that they are found for a function made anew, and
# are let go with it.
_by_code: weakref.WeakKeyDictionary[Any, Recent] = weakref.WeakKeyDictionary()


def traced_for(function: Any, wide: bool | None, structure: Any, given: Arguments) -> Traced:
    """The trace of a function for a call; made, if there is none that is still right."""
    is_wide = _is_wide(given.tensors) if wide is None else wide
    form = (
        is_wide,
        structure,
        given.static,
        tuple(map(type, given.static)),
        operator.forms_key(given.tensors),
    )
    calls = _calls_of(function)
    state = state_of(function)
    proven.note(function, state)
    key = state, form
    try:
        traced = None if state is None else calls.find(key)
        hash(form)
    except TypeError as error:
        raise function_errors.not_hashable(function, given.static) from error
    if traced is not None:
        return traced
    with proven.unwatched():
        traced = _trace(function, is_wide, structure, given)
    if state is not None:
        after = state_of(function)
        if after != state:
            raise function_errors.not_pure(function)
        calls.keep(key, traced)
        return traced
    return _known(calls, form, traced)


def _known(calls: Recent, form: Any, traced: Traced) -> Traced:
    """An earlier trace that computes the same as a new one, or the new one."""
    key = "computes", form, traced.structure, same_program(traced.program.closed)
    found = calls.find(key)
    if found is None:
        calls.keep(key, traced)
        return traced
    return found


def _calls_of(function: Any) -> Recent:
    """The traces of a function: by its code, or by itself where it has none."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    owner = getattr(inner, "__code__", None) or inner
    if isinstance(owner, types.MethodType):
        owner = owner.__func__.__code__
    try:
        calls = _by_code.get(owner)
        if calls is None:
            calls = _by_code.setdefault(owner, Recent())
    except TypeError:  # no weak references, or no hash
        return _others
    return calls


_others = Recent()


def _is_wide(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether JAX's 64-bit types are on in a function with these arguments."""
    doubles = (torch.float64, torch.complex128)
    return bool(jax.config.read("jax_enable_x64")) or any(t.dtype in doubles for t in tensors)


def _trace(function: Any, wide: bool, structure: Any, given: Arguments) -> Traced:
    name = function_errors.name_of(function)
    leaf = functools.partial(function_errors.as_array, function)
    with function_errors.told(function, given.tensors):
        return operator.trace(function, structure, given.static, given.tensors, wide, name, leaf)
