"""Operators over batches: an operator of the table under ``jax.vmap``.

For an overload such as ``aten::isin.Tensor_Tensor`` an operator of our own is defined, whose first
argument gives the batch dims of each tensor. Its lowering is that of the overload under
``jax.vmap``; shapes, dtypes and errors are those of PyTorch's meta function for one example.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import _pytree as pytree

from torch_jax.dispatch import ladder
from torch_jax.eager import refused_dtypes, variants
from torch_jax.eager.entry import by_parameter
from torch_jax.eager.signature import TENSOR, TENSORS, kind_of
from torch_jax.memory import geometry
from torch_jax.ops.registry import InOrder, Leading, Lowering

Dims = tuple[tuple[int | None, ...], ...]  # for each batch, the outermost first: of each tensor
_NONE = -1  # where a tensor has no such batch, in the operator's argument

_library = torch.library.Library("torch_jax", "FRAGMENT")
_defined: dict[Any, Callable[..., Any]] = {}
_defining = threading.Lock()


def batched(op: Any) -> Callable[..., Any]:
    """Return the overload over batches, as a function of :data:`Dims` and its arguments.

    All batches come first in the results, the outermost before the others.
    """
    found = _defined.get(op)
    if found is None:
        with _defining:
            found = _defined.get(op) or _defined.setdefault(op, _define(op))
    return found


def _define(op: Any) -> Callable[..., Any]:
    name = "batched_" + op.name().replace("aten::", "").replace("::", "_").replace(".", "_")
    _, _, arguments = str(op._schema).partition("(")
    separator = "" if arguments.startswith(")") else ", "
    _library.define(f"{name}(int[] batch_dims{separator}{arguments}")
    own = getattr(torch.ops.torch_jax, name).default
    of = positions_of(op)
    lowering = ladder.KERNELS_BY_OP[op].lowering
    shaped_by = variants.overload(lowering.meta) if isinstance(lowering.meta, str) else op
    _library.impl(name, functools.partial(_meta, shaped_by, of), "Meta")
    kernel = ladder.make_kernel(own, _lowering(op, lowering, of))
    _library.impl(name, ladder.enter(own, kernel.call), "PrivateUse1")

    def call(dims: Dims, *args: Any, **kwargs: Any) -> Any:
        flat = [_NONE if dim is None else dim for level in dims for dim in level]
        return own(flat, *args, **kwargs)

    return call


class Positions:
    """The arguments of an overload that are tensors, or lists of tensors."""

    def __init__(self, op: Any):
        kinds = {a.name: kind_of(a, frozenset()) for a in op._schema.arguments}
        self.names = [a.name for a in op._schema.arguments if not a.kwarg_only]
        self._of_tensors = {n for n, kind in kinds.items() if kind in (TENSOR, TENSORS)}

    def split(self, args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], Callable[..., Any]]:
        """Return the tensors among the arguments, and a function that replaces them by others."""
        given = dict(zip(self.names, args, strict=False)) | kwargs
        taken = {n: v for n, v in given.items() if n in self._of_tensors and v is not None}
        tensors = [t for value in taken.values() for t in _elements(value)]

        def fill(others: Any) -> tuple[tuple, dict[str, Any]]:
            rest = iter(others)
            filled = given | {n: _filled(value, rest) for n, value in taken.items()}
            positional = tuple(filled.pop(name) for name in self.names[: len(args)])
            return positional, filled

        return tensors, fill


positions_of = functools.cache(Positions)


def _elements(value: Any) -> list[Any]:
    return [v for v in value if v is not None] if isinstance(value, list | tuple) else [value]


def _filled(value: Any, rest: Iterator[Any]) -> Any:
    if isinstance(value, list | tuple):
        return [None if v is None else next(rest) for v in value]
    return next(rest)


def _levels(batch_dims: Any, count: int) -> Dims:
    """Return the argument of the operator as :data:`Dims`."""
    dims = [None if dim == _NONE else dim for dim in batch_dims]
    return tuple(tuple(dims[i : i + count]) for i in range(0, len(dims), count))


# --- shapes and dtypes ----------------------------------------------------------------------------


def _meta(op: Any, positions: Positions, batch_dims: Any, *args: Any, **kwargs: Any) -> Any:
    """Return outputs of PyTorch's meta function for one example, behind the batch dims."""
    tensors, fill = positions.split(args, kwargs)
    sizes = []
    for level in _levels(batch_dims, len(tensors)):
        sizes.append(next(t.shape[d] for t, d in zip(tensors, level, strict=True) if d is not None))
        tensors = [t if d is None else _example(t, d) for t, d in zip(tensors, level, strict=True)]
    args, kwargs = fill(tensors)
    refused_dtypes.refuse(op, args, kwargs)
    result = op(*args, **kwargs)
    return pytree.tree_map_only(torch.Tensor, lambda t: t.new_empty((*sizes, *t.shape)), result)


def _example(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    shape = [n for i, n in enumerate(tensor.shape) if i != dim % tensor.dim()]
    return tensor.new_empty(shape)


# --- values ---------------------------------------------------------------------------------------


def _lowering(op: Any, lowering: Lowering, positions: Positions) -> Lowering:
    """Return the lowering of an overload under ``jax.vmap``."""

    def over_batches(batch_dims: Any, *args: Any, **kwargs: Any) -> Any:
        one_example = _one_example(lowering, positions.names)
        return _vmapped(one_example, positions, batch_dims, args, kwargs)

    return lowering._replace(
        name=f"torch_jax::{op}",
        function=over_batches,
        check=_check(lowering, positions) if lowering.check else None,
        meta=lowering.meta if isinstance(lowering.meta, bool) else True,
        concrete=False,
        contiguous=(),
        strided=(),
        channels_last=(),
        uniform=False,
    )


def _one_example(lowering: Lowering, names: list[str]) -> Callable[..., Any]:
    """Return the function of a lowering, called as for contiguous arguments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        for name in lowering.contiguous:
            kwargs[f"{name}_is_contiguous"] = True
        for name in lowering.strided:
            kwargs[f"{name}_strides"] = geometry.row_major(given[name].shape)
        result = lowering.function(*args, **kwargs)
        return jax.tree.map(_plain, result, is_leaf=lambda one: isinstance(one, InOrder | Leading))

    return call


def _plain(value: Any) -> Any:
    """Return a result as an array, without the strides of PyTorch's."""
    if isinstance(value, InOrder):
        return jnp.asarray(value.value)
    if isinstance(value, Leading):
        return value.value[: math.prod(value.size)].reshape(value.size)
    return value


def _vmapped(
    function: Callable[..., Any], positions: Positions, batch_dims: Any, args: tuple, kwargs: dict
) -> Any:
    arrays, fill = positions.split(args, kwargs)
    numbers: list[Any] = []  # results that are no arrays, and the same for all examples
    form: Any = None

    def of_arrays(*some: jax.Array) -> list[Any]:
        nonlocal form
        args, kwargs = fill(some)
        leaves, form = jax.tree.flatten(function(*args, **kwargs))
        numbers[:] = [None if hasattr(leaf, "dtype") else leaf for leaf in leaves]
        return [leaf if hasattr(leaf, "dtype") else None for leaf in leaves]

    for level in reversed(_levels(batch_dims, len(arrays))):
        of_arrays = jax.vmap(of_arrays, in_axes=level)
    found = of_arrays(*arrays)
    leaves = [n if array is None else array for array, n in zip(found, numbers, strict=True)]
    return jax.tree.unflatten(form, leaves)


def _check(lowering: Lowering, positions: Positions) -> Callable[..., Any]:
    """Return the check of a lowering, passed where all examples pass."""
    check = lowering.check
    assert check is not None

    def of_all(batch_dims: Any, **given: Any) -> Any:
        rest: list[Any] = []

        def of_one(**given: Any) -> Any:
            found = check(**by_parameter(check, given))
            rest[:] = found[1:] if found else ()
            return jnp.asarray(found[0]) if found else None

        ok = _vmapped(of_one, positions, batch_dims, (), given)
        return None if ok is None else (ok.all(), *rest)

    return of_all
