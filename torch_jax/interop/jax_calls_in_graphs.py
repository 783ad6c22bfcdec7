"""Calls of JAX functions in graphs of Dynamo's: the number of a program, as a constant.

Dynamo looks into no JAX function. It asks here once, and a guard checks before each call of its
graph that the function reads the same values.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from torch_jax._private import dynamo, pytorch
from torch_jax.core import errors, trees, waking
from torch_jax.interop import jax_calls, names
from torch_jax.interop.function_state import state_of
from torch_jax.memory import dtypes, storage

TENSOR = "a tensor of torch_jax.call_jax"
_numbers = itertools.count()


def program_for(function: Any, wide: bool | None, shown: Any) -> Any:
    """Return the number of a program, the order of the tensors it takes, and its results' tree.

    None where the call can be no node: it is under a transform of ``torch.func``, it is given an
    array, or it reads what may change unseen, such as an iterator.
    ``shown`` is ``(args, kwargs)``, where a tuple that begins with :data:`TENSOR` is a tensor.
    """
    waking.wake()
    if pytorch.in_functional_transform():
        return None
    stand_ins: list[torch.Tensor] = []

    def stand_in(leaf: Any) -> Any:
        if not _is_tensor(leaf):
            return leaf
        _, shape, dtype, device = leaf
        if device != pytorch.DEVICE_TYPE and shape:
            name = f"the JAX function {names.name_of(function)}"
            raise errors.same_device(name, torch.empty(shape, dtype=dtype))
        form: Any = jax.ShapeDtypeStruct(shape, dtypes.to_jax(dtype))
        stand_ins.append(storage.wrap(form))  # a trace asks for shape and dtype only
        return stand_ins[-1]

    with pytorch.no_dispatch_modes(), torch.no_grad():
        args, kwargs = pytree.tree_map(stand_in, shown, is_leaf=_is_tensor)
        leaves, structure = trees.flatten((args, kwargs))
        given = jax_calls.sort(function, leaves)
        places = {id(tensor): at for at, tensor in enumerate(stand_ins)}
        order = tuple(places.get(id(tensor)) for tensor in given.tensors)
        state = state_of(function, given.static)
        if state is None or None in order:
            return None
        traced = jax_calls.traced_for(function, wide, structure, given)
    name = f"still_{next(_numbers)}"
    vars(sys.modules[__name__])[name] = lambda: state_of(function, given.static) == state
    dynamo.guard_graph(__name__, name)
    result = trees.unflatten(traced.structure, range(len(traced.program.results)))
    return traced.program.number, order, _shown(function, result)


def _shown(function: Any, result: Any) -> Any:
    """Return a tree of numbers as tuples, constants for Dynamo: a name, keys and values."""
    if result is None or isinstance(result, int):
        return result
    if type(result) is dict:
        return "dict", tuple(result), tuple(_shown(function, one) for one in result.values())
    if type(result) in (tuple, list):
        return type(result).__name__, (), tuple(_shown(function, one) for one in result)
    raise TypeError(
        f"the JAX function {names.name_of(function)} returns a {type(result).__name__}, "
        "which a graph of torch.compile cannot: return a dict, a list or a tuple there"
    )


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, tuple) and bool(leaf) and leaf[0] == TENSOR
