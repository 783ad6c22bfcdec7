"""Operators over batches: an operator of the table as a JAX function, under ``jax.vmap``.

One example is traced: shapes, dtypes and errors are those of the operator itself. The function over
all examples is a program like a JAX function that PyTorch calls, with derivatives from JAX and
further batches (:mod:`torch_jax.dispatch.call_jax`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core import precision, trees
from torch_jax.core.active import ACTIVE, unrecorded
from torch_jax.dispatch import call_jax, jax_programs, ladder
from torch_jax.eager.entry import by_parameter
from torch_jax.eager.twins import by_name
from torch_jax.memory import storage, transfer

_NO_WORDS = np.zeros(4, np.uint32)
_examples = call_jax.Recent(ENTRIES_REMEMBERED)


class Given(NamedTuple):
    """A tensor among the arguments of one example."""

    shape: tuple[int, ...]
    dtype: torch.dtype


TENSOR = object()


class Example(NamedTuple):
    """An operator traced for one example."""

    program: jax_programs.Program  # gives the results that are tensors
    results: list[Any]  # the leaves of all results, with ``TENSOR`` in place of tensors
    form: Any  # the structure of the results


def example_of(op: Any, form: Any, leaves: list[Any]) -> Example:
    """Return an overload of the table for one example, of leaves that show no batch."""
    given = [
        Given(tuple(map(int, x.shape)), x.dtype) if isinstance(x, torch.Tensor) else x
        for x in leaves
    ]
    state = config.version(), precision.with_dtype()
    key = op, form, tuple(given), tuple(map(type, given)), state
    return _examples.get_or_make(key, lambda: _traced(op, form, given))


def run(program: jax_programs.Program, tensors: list[torch.Tensor], dims: Any) -> tuple:
    """Return the program's results for each example; the batch is first in these."""
    size = next(int(t.shape[d]) for t, d in zip(tensors, dims, strict=True) if d is not None)
    return call_jax.run(program.batched(tuple(dims), size), tensors)


def _traced(op: Any, form: Any, leaves: list[Any]) -> Example:
    kernel: Any = ladder.kernel_in_table(op)
    forms = [leaf for leaf in leaves if isinstance(leaf, Given)]
    found: list[Any] = []

    def filled(values: Any) -> tuple[tuple, dict[str, Any]]:
        values = iter(values)
        given = [next(values) if isinstance(leaf, Given) else leaf for leaf in leaves]
        return trees.unflatten(form, given)

    def of_one(*arrays: jax.Array) -> list[jax.Array]:
        with _by_itself():
            args, kwargs = filled(map(storage.wrap, arrays, (one.dtype for one in forms)))
            results, structure = trees.flatten(kernel.call(*args, **kwargs))
            found[:] = [TENSOR if isinstance(x, torch.Tensor) else x for x in results], structure
            return [transfer.as_array(x) for x in results if isinstance(x, torch.Tensor)]

    def check(tensors: list[jax.Array]) -> Any:
        args, kwargs = filled(tensors)
        given = by_name(op, args, kwargs)
        return kernel.lowering.check(**by_parameter(kernel.lowering.check, given))

    program = jax_programs.trace(of_one, list(map(call_jax.form_of, forms)), True, str(op))
    program.check = check if kernel.lowering.check else None
    return Example(program, *found)


@contextlib.contextmanager
def _by_itself() -> Iterator[None]:
    """Run an operator for the trace of one example, unseen by others; its draws are not used."""
    before, ACTIVE.tracer = ACTIVE.tracer, SimpleNamespace(checks=[], draw=lambda _: _NO_WORDS)
    try:
        with unrecorded(), pytorch.no_dispatch_modes(), pytorch.below_autograd():
            yield
    finally:
        ACTIVE.tracer = before
