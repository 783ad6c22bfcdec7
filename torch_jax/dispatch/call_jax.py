"""JAX functions called with PyTorch's tensors, with gradients from ``jax.vjp``.

The call is an operator of its own, ``torch_jax::call_jax``, so that every executor sees it: eager
caches its compiled form by shapes, and a trace takes its tensors as inputs.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import _pytree as pytree

from torch_jax._private import pytorch
from torch_jax.core import errors
from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes
from torch_jax.ops.registry import Lowering

_numbers = itertools.count()
_programs: weakref.WeakValueDictionary[int, _Program] = weakref.WeakValueDictionary()


def jax_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``jax.Array``s as one of tensors on device ``jax``.

    Tensors anywhere in the arguments arrive as arrays, and dtypes as NumPy's; all else is static:
    the function is compiled for each value. It must be pure. Gradients are those of ``jax.vjp``.

    >>> import jax.numpy as jnp
    >>> cube = jax_function(lambda x: x**3)
    >>> x = torch.tensor([1.0, 2.0], device="jax", requires_grad=True)
    >>> cube(x).sum().backward()
    >>> x.grad.cpu()
    tensor([ 3., 12.])
    """
    programs: dict[Any, _Program] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, form = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        static = tuple(_static(leaf) for leaf in leaves)
        key = form, static, tuple(type(leaf) for leaf in static)
        try:
            program = programs.get(key)
        except TypeError as error:
            shown = errors.describe_call(getattr(function, "__name__", function), args, kwargs)
            raise TypeError(
                f"{shown}: an argument of a JAX function is neither a tensor nor hashable"
            ) from error
        if program is None:
            program = programs[key] = _Program(_of_tensors(function, form, static))
        results = _Call.apply(program, *tensors)
        return jax.tree_util.tree_unflatten(program.result, results)

    return call


_TENSOR = object()


def _static(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _TENSOR
    return dtypes.to_jax(leaf) if isinstance(leaf, torch.dtype) else leaf


def _of_tensors(function: Callable, form: Any, static: tuple) -> Callable[..., Any]:
    """``function`` with everything but its arrays filled in."""

    def call(*arrays: jax.Array) -> Any:
        given = iter(arrays)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in static]
        args, kwargs = pytree.tree_unflatten(leaves, form)
        return function(*args, **kwargs)

    return call


class _Program:
    """A function of arrays, the tree of its results (once traced), and its derivatives."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.result = function, None
        self.number = next(_numbers)
        self._derived: dict[Any, _Program] = {}
        _programs[self.number] = self

    def __call__(self, arrays: list[jax.Array]) -> list[jax.Array]:
        leaves, self.result = jax.tree_util.tree_flatten(self.function(*arrays))
        return [jnp.asarray(leaf) for leaf in leaves]

    def _flat(self, *arrays: jax.Array) -> list[jax.Array]:
        return self(list(arrays))

    def pullback(self, wanted: tuple[int, ...], count: int) -> _Program:
        """From ``count`` arguments and the gradients of the results to those of ``wanted`` ones."""

        def pullback(*arrays: jax.Array) -> list[jax.Array]:
            given, gradients = list(arrays[:count]), arrays[count:]

            def of_wanted(*some: jax.Array) -> list[jax.Array]:
                for at, array in zip(wanted, some, strict=True):
                    given[at] = array
                return [r for r in self._flat(*given) if _has_gradient(r.dtype)]

            _, back = jax.vjp(of_wanted, *(given[at] for at in wanted))
            # PyTorch's gradient of a complex value is the conjugate of JAX's cotangent
            return [jnp.conj(g) for g in back([jnp.conj(g) for g in gradients])]

        return self._derive(("pullback", wanted), pullback)

    def batched(self, dims: tuple[int | None, ...]) -> _Program:
        """Over a batch in these dimensions of the arguments, which comes first in the results."""
        return self._derive(("batched", dims), jax.vmap(self._flat, in_axes=dims))

    def _derive(self, key: Any, function: Callable[..., Any]) -> _Program:
        if key not in self._derived:
            self._derived[key] = _Program(function)
        return self._derived[key]


def _has_gradient(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


class _Call(torch.autograd.Function):
    """Runs a program; its backward pass runs another."""

    @staticmethod
    def forward(program: _Program, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.torch_jax.call_jax(list(tensors), program.number))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, ...]) -> None:
        ctx.program, *tensors = inputs
        ctx.save_for_backward(*tensors)
        exact = [t for t in output if not (t.is_floating_point() or t.is_complex())]
        ctx.mark_non_differentiable(*exact)
        ctx.differentiable = [i for i, t in enumerate(output) if all(t is not e for e in exact)]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        wanted = tuple(i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed)
        pullback = ctx.program.pullback(wanted, len(tensors))
        given = [gradients[i] for i in ctx.differentiable]
        found = iter(_Call.apply(pullback, *tensors, *given))
        return None, *(next(found) if i in wanted else None for i in range(len(tensors)))

    @staticmethod
    def vmap(info: Any, dims: tuple, program: _Program, *tensors: torch.Tensor) -> tuple:
        results = _Call.apply(program.batched(dims[1:]), *tensors)
        return results, (0,) * len(results)


def _call_jax(tensors: list[jax.Array], program: int) -> list[jax.Array]:
    return _programs[program](tensors)


def fake_call(tensors: list[torch.Tensor], program: int) -> list[torch.Tensor]:
    """Tensors like the results, while ``torch.compile`` traces with tensors that hold nothing."""
    arrays = [
        jax.ShapeDtypeStruct(tuple(map(int, t.shape)), dtypes.to_jax(t.dtype)) for t in tensors
    ]
    with x64():
        results = jax.eval_shape(_programs[program]._flat, *arrays)
    return [
        torch.empty(r.shape, dtype=dtypes.to_torch(r.dtype), device=pytorch.DEVICE_TYPE)
        for r in results
    ]


SCHEMA = "call_jax(Tensor[] tensors, int program) -> Tensor[]"
LOWERING = Lowering("torch_jax::call_jax", _call_jax, frozenset({"program"}), meta=False)
