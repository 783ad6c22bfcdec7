"""``torch.cond``, ``while_loop``, ``scan`` and ``map`` under a trace: JAX's own control flow.

In eager mode PyTorch's dense implementations look at the predicate and run Python. Under a trace
the predicate has no value: the branches are traced into ``jax.lax.cond``, ``while_loop``, ``scan``
and ``map``. (A loop that PyTorch would unroll is then one loop of XLA of any length.)

See https://docs.pytorch.org/docs/stable/cond.html and
https://docs.jax.dev/en/latest/control-flow.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import jax
import torch
from jax import lax
from torch.utils import _pytree as pytree

from torch_jax._private import dynamo, pytorch
from torch_jax.core.active import ACTIVE
from torch_jax.core.tracers import is_traced
from torch_jax.core.x64 import x64
from torch_jax.memory import storage, transfer

Dense = Callable[..., Any]


def cond(dense: Dense, pred, true_fn, false_fn, operands) -> Any:
    """Return ``true_fn(*operands)`` where ``pred`` is true, else ``false_fn(*operands)``."""
    if not _any_traced([pred]):
        return dense(pred, true_fn, false_fn, operands)
    branches = [_Branch(true_fn, operands), _Branch(false_fn, operands)]
    with x64():
        results = lax.cond(_array(pred).reshape(()), *branches, *branches[0].arrays)
    return branches[0].wrapped(results)


def while_loop(
    dense: Dense, cond_fn, body_fn, carried_inputs, additional_inputs, *args: Any, **kwargs: Any
) -> Any:
    """Apply ``body_fn`` to its own results as long as ``cond_fn`` of them is true."""
    inputs = (*carried_inputs, *additional_inputs)
    stacks = any(args) or any(kwargs.values())  # stack_output: for autograd
    if stacks or not _any_traced(inputs):
        return dense(cond_fn, body_fn, carried_inputs, additional_inputs, *args, **kwargs)
    count = len(carried_inputs)
    test, body = _Branch(cond_fn, inputs), _Branch(body_fn, inputs)
    rest = body.arrays[count:]
    with x64():
        results = lax.while_loop(
            lambda carry: test(*carry, *rest)[0].reshape(()),
            lambda carry: body(*carry, *rest),
            tuple(body.arrays[:count]),
        )
    return tuple(body.wrapped(results))


def scan(dense: Dense, combine_fn, init, xs, additional_inputs, mutated_arg_indices="") -> Any:
    """Scan ``combine_fn(carry, x)`` over the first dim of ``xs``: carry and stacked results.

    From torch 2.14 on the function may write its operands; under a trace that is refused.
    """
    inputs = (*init, *xs, *additional_inputs)
    if not _any_traced(inputs):
        return dense(combine_fn, init, xs, additional_inputs)
    if mutated_arg_indices:
        raise NotImplementedError(
            f"the function of a scan or map writes its operands {mutated_arg_indices}: under a "
            "trace return the new values instead"
        )
    count = len(init)
    arrays = [_array(x) for x in (*init, *xs)]
    body = _Branch(combine_fn, (*init, *(x[0] for x in xs), *additional_inputs))
    rest = body.arrays[len(arrays) :]

    def step(carry: tuple, x: tuple) -> tuple[tuple, tuple]:
        results = body(*carry, *x, *rest)
        return tuple(results[:count]), tuple(results[count:])

    with x64():
        carry, stacked = lax.scan(step, tuple(arrays[:count]), tuple(arrays[count:]))
    return body.wrapped([*carry, *stacked])


def map_(dense: Dense, f, xs, pos_args, mutated_arg_indices="") -> Any:
    """Apply ``f`` to each slice of ``xs`` along the first dim, and stack the results."""

    def unrolled(_f: Any, _init: Any, *operands: Any) -> Any:
        return dense(f, *operands)

    return scan(unrolled, f, (), xs, pos_args, mutated_arg_indices)


def checkpoint(function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Call ``function(*operands)``, and again in the backward pass of JAX's differentiation."""
    body = _Branch(function, operands)
    places = [i for i, dtype in enumerate(body.dtypes) if dtype is not None]

    def of_tensors(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        given = dict(zip(places, arrays, strict=True))
        return body(*(given.get(i, a) for i, a in enumerate(body.arrays)))

    with x64():
        results = jax.checkpoint(of_tensors)(*(body.arrays[i] for i in places))
    return body.wrapped(results)


@contextmanager
def compiling(original: Callable[[], Any]) -> Iterator[Callable[..., Any]]:
    """Let Dynamo make graphs of branches, and run them where operators are seen."""
    seeing = pytorch.dispatch_stack()

    def backend(graph: Any, _examples: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            with ExitStack() as modes:
                for mode in seeing:
                    modes.enter_context(mode)
                return graph(*inputs)

        return run

    with original(), pytorch.no_dispatch_modes(), dynamo.dynamo_stance("default"):
        yield backend


class _Branch:
    """A function of tensors as a function of arrays, which remembers the form of its result."""

    def __init__(self, function: Callable[..., Any], operands: Sequence[Any]):
        self.function = function
        self.dtypes = [x.dtype if isinstance(x, torch.Tensor) else None for x in operands]
        self.arrays = [_array(x) for x in operands]
        self.form: Any = None
        self.results: list[torch.dtype | None] = []

    def __call__(self, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        operands = _wrapped(arrays, self.dtypes)
        with ACTIVE.tracer.watching_inside() if ACTIVE.tracer is not None else nullcontext():
            result = self.function(*operands)
        flat, self.form = pytree.tree_flatten(result)
        self.results = [x.dtype if isinstance(x, torch.Tensor) else None for x in flat]
        return tuple(_array(x) for x in flat)

    def wrapped(self, arrays: Iterable[Any]) -> Any:
        """Return arrays like the branch's results, in the form of the branch."""
        return pytree.tree_unflatten(_wrapped(arrays, self.results), self.form)


def _wrapped(arrays: Iterable[Any], kinds: Iterable[torch.dtype | None]) -> list[Any]:
    """Return arrays as tensors of these dtypes; numbers, whose dtype is None, unchanged."""
    pairs = zip(arrays, kinds, strict=True)
    return [array if dtype is None else storage.wrap(array, dtype) for array, dtype in pairs]


def _any_traced(operands: Iterable[Any]) -> bool:
    tensors = (x for x in operands if isinstance(x, torch.Tensor) and storage.is_jax(x))
    return any(is_traced(storage.memory_of(x)) for x in tensors)


def _array(value: Any) -> Any:
    """Return an operand or result as an array; Python numbers unchanged."""
    return transfer.as_array(value) if isinstance(value, torch.Tensor) else value
