"""Calls of JAX functions: arguments sorted, and their traces found or made.

A function is traced for each form of its arguments, and again when a value that it reads has
changed. If such a change cannot be noticed, it is traced at each call, and compiled again when the
trace differs. :mod:`torch_jax.interop.function_state` compares both.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax._private import jax_core, pytorch
from torch_jax._private.jaxprs import mentions
from torch_jax.budgets import STATES_WITH_ARRAYS
from torch_jax.core import errors, numbers, trees, waking
from torch_jax.core.active import ACTIVE
from torch_jax.dispatch import call_jax as operator
from torch_jax.dispatch.call_jax import Given, Recent, Traced
from torch_jax.interop import function_state, names
from torch_jax.interop.function_state import identities_of, state_of
from torch_jax.memory import dtypes, storage


def call(function: Any, wide: bool | None, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a JAX function; ``wide``: whether 64-bit types are on, None: if an argument has them."""
    waking.wake()
    while isinstance(function, functools.partial):  # there may be tensors among its arguments
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    leaves, structure = trees.flatten((args, kwargs))
    given = sort(function, leaves)
    return traced_for(function, wide, structure, given)(given.tensors)


class Arguments(NamedTuple):
    """The leaves of a call: static ones, with marks in place of the others; and the tensors."""

    static: tuple[Any, ...]
    tensors: list[torch.Tensor]


def sort(function: Any, leaves: Sequence[Any]) -> Arguments:
    """Separate arrays from static arguments."""
    static: list[Any] = []
    tensors: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if leaf.device.type != pytorch.DEVICE_TYPE and leaf.dim():
                raise errors.same_device(f"the JAX function {names.name_of(function)}", leaf)
            static.append(Given())
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
    """Return the mark of an array, and a tensor over it; of NumPy's, over a copy that stays."""
    key = None
    if isinstance(array, np.ndarray):
        array = jnp.asarray(array)
    elif jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        key, array = str(jax.random.key_impl(array)), jax.random.key_data(array)
    return Given(key), storage.wrap(array)


# The traces of a function belong to its code, so that a function made again finds them: those of
# one state of the function together.
_by_code: weakref.WeakKeyDictionary[Any, _States] = weakref.WeakKeyDictionary()


class _States:
    """Traces by the state of a function, then by the form of a call.

    A state that holds arrays keeps them alive, so few of these are kept: a function made again at
    each call may close over others each time.
    """

    def __init__(self) -> None:
        self._plain, self._with_arrays = Recent(), Recent(STATES_WITH_ARRAYS)
        self.computed: Recent = Recent()  # of functions whose state is unknown

    def of(self, state: tuple) -> Recent:
        """Return the traces of a state."""
        states = self._with_arrays if function_state.holds_arrays(state) else self._plain
        return states.get_or_make(state, Recent)


def traced_for(function: Any, wide: bool | None, structure: Any, given: Arguments) -> Traced:
    """Return the trace of a function for a call; it is made if no valid one is known."""
    is_wide = wide
    if is_wide is None:  # inside a trace 64-bit types are always on, also without the user's wish
        state = jax_core.x64_state()
        on = state.value if ACTIVE.tracer is None else state.get_global()
        is_wide = on or any(t.dtype in (torch.float64, torch.complex128) for t in given.tensors)
    form = is_wide, structure, operator.forms_key(given.tensors)
    states = _states_of(function)
    if (state := state_of(function, given.static)) is None:
        traced = _trace(function, is_wide, structure, given)
        key = form, traced.structure, function_state.same_program(traced.program.closed)
        return states.computed.get_or_make(key, lambda: traced)  # or one that computes the same
    traces = states.of(state)
    try:
        kept = traces.find(form)
    except TypeError as error:
        raise TypeError(
            f"the JAX function {names.name_of(function)} was given a tree whose static "
            "part is not hashable: make its class a pytree whose auxiliary data are"
        ) from error
    # a trace that calls Python back is valid only for the objects that it may write
    if kept is None or (kept[1] is not None and kept[1] != identities_of(function, given.static)):
        traced = _trace(function, is_wide, structure, given)
        if state_of(function, given.static) != state:
            raise RuntimeError(
                f"the JAX function {names.name_of(function)} changes a variable of its "
                "closure, a global or an object that it reads. It runs when it is traced and not "
                "at each call: return the value in place of keeping it, or call back to Python "
                "with jax.debug.callback or jax.experimental.io_callback"
            )
        calls_back = mentions(traced.program.closed.jaxpr, "callback")
        kept = traced, identities_of(function, given.static) if calls_back else None
        traces.keep(form, kept)
    return kept[0]


def _states_of(function: Any) -> _States:
    """Return the traces of a function: by its code, or by itself where it has none."""
    owner = function_state.owner_of(function)
    try:
        states = _by_code.get(owner)
        return _by_code.setdefault(owner, _States()) if states is None else states
    except TypeError:  # no weak references, or no hash
        return _others


_others = _States()


def _trace(function: Any, wide: bool, structure: Any, given: Arguments) -> Traced:
    name = names.name_of(function)
    leaf = functools.partial(names.as_array, function)
    with names.explained(function, given.tensors):
        return operator.trace(function, structure, given.static, given.tensors, wide, name, leaf)
