"""Derivatives of operators over batches: PyTorch's own of one example, under ``torch.vmap``.

An operator under ``jax.vmap`` is one call, for which autograd knows no formula. Its gradient is the
gradient that PyTorch has for one example, over all of them; so are tangents, and batches of batches
are one call again. Under several transforms, each is handled by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import func
from torch.utils import _pytree as pytree

from torch_jax._private import functorch
from torch_jax.dispatch.batched_operator import Dims, batched, positions_of


def over_batches(op: Any, dims: Dims, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return an overload's result for each example of batches in ``dims``; these come first."""
    tensors, fill = positions_of(op).split(args, kwargs)
    wants_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if not (functorch.transforms_active() or functorch.forward_mode() or wants_gradient):
        return batched(op)(dims, *args, **kwargs)
    call = _Call(op, fill, dims)
    flat = iter(_OverBatches.apply(call, *tensors))
    leaves = [next(flat) if leaf is _TENSOR else leaf for leaf in call.leaves]
    return pytree.tree_unflatten(leaves, call.form)


_TENSOR = object()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class _Call:
    """A call of an overload over batches: its arguments but for tensors; the form of its results.

    The form is known once the operator has run, alone or inside another call.
    """

    form: Any
    leaves: list[Any]

    def __init__(self, op: Any, fill: Callable[..., Any], dims: Dims, inside: _Call | None = None):
        self.op, self.fill, self.dims, self.inside = op, fill, dims, inside

    def run(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Run all examples at once."""
        args, kwargs = self.fill(tensors)
        leaves, form = pytree.tree_flatten(batched(self.op)(self.dims, *args, **kwargs))
        call: _Call | None = self
        while call is not None:
            call.form, call.leaves = form, [_TENSOR if _is_tensor(v) else v for v in leaves]
            call = call.inside
        return tuple(filter(_is_tensor, leaves))

    def example(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the results of one example that have a gradient."""
        args, kwargs = self.fill(tensors)
        leaves = pytree.tree_leaves(self.op(*args, **kwargs))
        return tuple(leaf for leaf in leaves if _is_tensor(leaf) and _is_inexact(leaf))

    def of(self, wanted: list[int], tensors: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
        """Return :meth:`example` as a function of some of its tensors."""

        def function(*some: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = dict(zip(wanted, some, strict=True))
            return self.example([given.get(i, t) for i, t in enumerate(tensors)])

        return function


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class _OverBatches(torch.autograd.Function):
    """A call over batches, with a rule for each transform."""

    @staticmethod
    def forward(call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return call.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.inexact = [_is_inexact(t) for t in output]
        exact = [t for t in output if not _is_inexact(t)]
        ctx.mark_non_differentiable(*exact)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        given = [g for g, inexact in zip(gradients, ctx.inexact, strict=True) if inexact]

        def of_one(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            one, gradients = values[: len(tensors)], values[len(tensors) :]
            _, pull, *_ = func.vjp(call.of(wanted, one), *(one[i] for i in wanted))
            return pull(gradients)

        for level in reversed(call.dims):
            in_dims = (*level, *(0 for _ in given))
            of_one = _gathered(call.op, of_one, in_dims, [level[i] for i in wanted])
        found = iter(of_one(*tensors, *given))
        return None, *(next(found) if i in wanted else None for i in range(len(tensors)))

    @staticmethod
    def jvp(ctx: Any, _call: Any, *tangents: Any) -> tuple[torch.Tensor | None, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        moving = [i for i, tangent in enumerate(tangents) if tangent is not None]

        def of_one(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            one, tangents = values[: len(tensors)], values[len(tensors) :]
            results, pull, *_ = func.vjp(call.of(moving, one), *(one[i] for i in moving))
            # the transpose of the transpose, since forward mode has one level only
            _, push, *_ = func.vjp(lambda *g: pull(g), *map(torch.zeros_like, results))
            return push(tangents)

        for level in reversed(call.dims):
            in_dims = (*level, *(level[i] for i in moving))
            of_one = func.vmap(of_one, in_dims=in_dims)
        found = iter(of_one(*tensors, *(tangents[i] for i in moving)))
        return tuple(next(found) if inexact else None for inexact in ctx.inexact)

    @staticmethod
    def vmap(_info: Any, dims: tuple, call: _Call, *tensors: torch.Tensor) -> tuple[Any, Any]:
        outer = _Call(call.op, call.fill, (dims[1:], *call.dims), call)
        results = _OverBatches.apply(outer, *tensors)
        return results, (0,) * len(results)


def _gathered(op: Any, function: Any, in_dims: tuple, own: list[int | None]) -> Callable[..., Any]:
    """Return a gradient of one example over all: its batch dim is that of its tensor."""

    def call(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        try:
            found = func.vmap(function, in_dims=in_dims)(*values)
        except RuntimeError as error:  # some gradients look at values
            found = _one_by_one(function, in_dims, values)
            warnings.warn(
                f"There is a performance drop because the gradient of {op} is computed for one "
                f"example at a time under vmap: {error}",
                stacklevel=2,
            )
        pairs = zip(found, own, strict=True)
        return tuple(g.sum(0) if dim is None else g.movedim(0, dim) for g, dim in pairs)

    return call


def _one_by_one(function: Any, in_dims: tuple, values: tuple) -> tuple[torch.Tensor, ...]:
    """Call a function of one example for each, as PyTorch does."""
    pairs = list(zip(values, in_dims, strict=True))
    count = next(v.shape[dim] for v, dim in pairs if dim is not None)
    found = [
        function(*(v if dim is None else v.select(dim, i) for v, dim in pairs))
        for i in range(count)
    ]
    return tuple(torch.stack(results) for results in zip(*found, strict=True))
