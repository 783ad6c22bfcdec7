"""PyTorch's derivatives as JAX's: ``jax.grad`` gives the gradients of PyTorch's backward pass.

JAX could differentiate the operators that it sees, but would not see where PyTorch stops a gradient
(``detach``, ``no_grad``) or computes another one (``autograd.Function``). So a function becomes a
``jax.custom_vjp``: its forward rule runs it with autograd's graph, and traces the backward pass
through that graph. The residuals are the arrays that this takes from the forward pass.

The backward pass is a function of tensors, too, which PyTorch differentiates again
(``create_graph=True``). So derivatives of derivatives are the same construction over it::

    of(f).call                         f's results
    of(f).call's forward rule          of(f).run: results and the traced backward pass
    of(f).call's backward rule         of(f).back: the traced backward pass, evaluated
    of(f).back's forward rule          of(backward pass of f).run
    of(f).back's backward rule         of(backward pass of f).back

``run`` has derivatives of its own, since JAX differentiates forward rules where it differentiates
twice: they are those of its results; residuals take part in none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from torch_jax.core.x64 import x64
from torch_jax.interop import crossing
from torch_jax.interop.function_run import FunctionRun, begun
from torch_jax.memory import storage, transfer

Program = Callable[[Sequence[torch.Tensor]], AbstractContextManager[list[torch.Tensor]]]
"""A function of tensors as a context, in which its results may be differentiated."""

Begin = Callable[[Any], FunctionRun]
"""Begins a run with key words."""


@jax.tree_util.register_static
class BackwardPass:
    """A traced backward pass, which JAX takes for a constant.

    Two traces of one function are equal here: JAX compares the results of a function and of its
    forward rule, each of which was traced by itself.
    """

    def __init__(self, jaxpr: Any, outputs: tuple[int, ...]):
        self.jaxpr, self.outputs = jaxpr, outputs  # which results of the function have gradients
        shown = [v.aval.str_short() for v in (*jaxpr.constvars, *jaxpr.invars)]
        self._key = outputs, tuple(shown)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BackwardPass) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class Pullback(NamedTuple):
    """A backward pass, and the arrays that it takes from the forward pass."""

    traced: BackwardPass
    residuals: list[Any]

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        with x64():
            return jax.core.eval_jaxpr(self.traced.jaxpr, self.residuals, *gradients)


@contextmanager
def running(
    program: Program, begin: Begin, words: Any, arrays: Sequence[Any]
) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Run a program on arrays in this context; yield them as tensors, and the results."""
    run = begin(words)
    with x64(), begun(run):
        tensors = [run.mode.adopt(crossing.tensor(array)) for array in arrays]
        with program(tensors) as results:
            yield tensors, results


class Differentiable:
    """A program as functions of arrays that JAX differentiates by PyTorch's autograd.

    ``call`` is of key words and arrays, ``run`` gives a :class:`Pullback`, too, and ``back`` takes
    one, with gradients of results, for gradients of arrays; both of those that have some.
    """

    def __init__(self, program: Program, begin: Begin):
        self._program, self._begin = program, begin
        self._backward_passes: dict[Any, Differentiable] = {}
        self.call: Any = jax.custom_vjp(self._results)
        self.run: Any = jax.custom_vjp(self._results_and_pullback)
        self.back: Any = jax.custom_vjp(
            lambda _words, _arrays, pullback, gradients: pullback(gradients)
        )
        self.call.defvjp(self._forward, self._backward)
        self.run.defvjp(self._run_forward, lambda kept, given: self._backward(kept, given[0]))
        self.back.defvjp(self._back_forward, self._back_backward)

    # --- the function -----------------------------------------------------------------------------

    def _results(self, words: Any, arrays: Sequence[Any]) -> list[Any]:
        narrow = crossing.is_narrow()
        with running(self._program, self._begin, words, arrays) as (_, results):
            return [crossing.out(result, narrow) for result in results]

    def _results_and_pullback(self, words: Any, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        narrow = crossing.is_narrow()
        with running(self._program, self._begin, words, arrays) as (tensors, results):
            given_out = [crossing.out(result, narrow) for result in results]
            leaves = [tensor for tensor in tensors if tensor.requires_grad]
            return given_out, _pullback(leaves, results, given_out)

    # --- its derivative ---------------------------------------------------------------------------

    def _forward(self, words: Any, arrays: Any) -> tuple:
        results, pullback = self.run(words, arrays)
        return results, (words, arrays, pullback)

    def _backward(self, kept: tuple, gradients: Sequence[Any]) -> tuple:
        words, arrays, pullback = kept
        given = [gradients[i] for i in pullback.traced.outputs]
        found = iter(self.back(words, arrays, pullback, given))
        inexact = (jnp.issubdtype(array.dtype, jnp.inexact) for array in arrays)
        pairs = zip(arrays, inexact, strict=True)
        return None, [crossing.of_axes(next(found), a) if yes else None for a, yes in pairs]

    def _run_forward(self, words: Any, arrays: Any) -> tuple:
        results, kept = self._forward(words, arrays)
        return (results, kept[-1]), kept

    # --- the derivative of its derivative ---------------------------------------------------------

    def _back_forward(self, words: Any, arrays: Any, pullback: Any, gradients: Any) -> tuple:
        given = [*arrays, *map(jnp.conj, gradients)]
        results, next_one = self._derived(pullback.traced.outputs, len(arrays)).run(words, given)
        return [jnp.conj(g) for g in results], (words, arrays, pullback, gradients, next_one)

    def _back_backward(self, kept: tuple, gradients: Sequence[Any]) -> tuple:
        words, arrays, pullback, before, next_one = kept
        given = [*arrays, *map(jnp.conj, before)]
        derived = self._derived(pullback.traced.outputs, len(arrays))
        _, found = derived._backward((words, given, next_one), [jnp.conj(g) for g in gradients])
        of_arrays, of_gradients = found[: len(arrays)], found[len(arrays) :]
        return None, of_arrays, None, [jnp.conj(g) for g in of_gradients]

    def _derived(self, outputs: tuple[int, ...], count: int) -> Differentiable:
        """Return the function from arguments and results' gradients to arguments' gradients."""

        @contextmanager
        def backward_pass(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
            given, gradients = tensors[:count], tensors[count:]
            with self._program(given) as results:
                chosen = [results[i] for i in outputs]
                yield _gradients_of(chosen, [t for t in given if t.requires_grad], gradients, True)

        new = Differentiable(backward_pass, self._begin)
        return self._backward_passes.setdefault((outputs, count), new)


def _pullback(
    leaves: list[torch.Tensor], results: list[torch.Tensor], given_out: list[Any]
) -> Pullback:
    """Trace the backward pass of results."""
    outputs = tuple(i for i, result in enumerate(results) if result.requires_grad)
    chosen = [results[i] for i in outputs]

    def pull(*gradients: Any) -> list[Any]:
        # PyTorch's gradient of a complex value is the conjugate of JAX's cotangent
        pairs = zip(gradients, chosen, strict=True)
        given = [storage.wrap(jnp.conj(gradient)).to(result.dtype) for gradient, result in pairs]
        found = _gradients_of(chosen, leaves, given, False)
        return [jnp.conj(transfer.as_array(gradient)) for gradient in found]

    closed = jax.make_jaxpr(pull)(*(jax.typeof(given_out[i]) for i in outputs))
    return Pullback(BackwardPass(closed.jaxpr, outputs), list(map(jnp.asarray, closed.consts)))


def _gradients_of(
    results: list[torch.Tensor],
    wanted: list[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    create_graph: bool,
) -> list[torch.Tensor]:
    """Return gradients of all that are wanted, zeros where results do not depend on one."""
    if not results or not wanted:
        return [torch.zeros_like(tensor) for tensor in wanted]
    options: Any = {"create_graph": create_graph, "materialize_grads": True}
    return list(torch.autograd.grad(results, wanted, list(gradients), **options))
