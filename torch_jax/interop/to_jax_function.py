"""``torch_jax.to_jax_function``: a function of tensors as a pure function of JAX's arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax.core import autograd_nodes, trees
from torch_jax.core.tracers import NotTraceableError
from torch_jax.graphs import interpreter
from torch_jax.interop import crossing, names
from torch_jax.interop.derivatives import Differentiable, running
from torch_jax.interop.function_run import FunctionRun

_ARRAY = object()


def to_jax_function(function: Callable[..., Any], *, derivatives: str = "torch") -> Callable:
    """Return a PyTorch function as a pure function of JAX: arrays in, arrays out.

    It may be called by itself, and under ``jax.jit``, ``grad``, ``vjp``, ``vmap``, ``lax.scan``,
    ``checkpoint``, ``shard_map`` and ``eval_shape``. Arrays anywhere in its arguments arrive as
    tensors of device ``jax`` over the same memory, and tensors in its results come out as arrays;
    all others pass unchanged. Tensors that the function closes over are constants.

    Derivatives are PyTorch's, at every order: ``detach``, ``torch.no_grad`` and
    ``autograd.Function`` mean the same under ``jax.grad`` as in a backward pass.

    Args:
      function: a function of tensors; for modules see :func:`torch_jax.functional`.
      derivatives: ``"torch"``, or ``"jax"``: JAX differentiates the operators, also in forward mode
        (``jax.jvp``, ``jacfwd``, ``hessian``); operations that stop or replace gradients in PyTorch
        are then errors.

    Returns:
      A function with the same arguments, and ``rng=``, a ``jax.random.key`` from which the random
      operators draw.

    Raises:
      TypeError: an argument is a tensor.
      NotTraceableError: the function writes to tensors from outside, or draws random numbers
        without ``rng``.
      DataDependentError: under a transformation, the function asks for values.

    >>> import jax, jax.numpy as jnp
    >>> def loss(x, y):
    ...     return torch.nn.functional.mse_loss(x, y.detach())
    >>> gradients = jax.jit(jax.grad(to_jax_function(loss), argnums=(0, 1)))
    >>> [g.tolist() for g in gradients(jnp.array([1.0, 2.0]), jnp.array([0.0, 0.0]))]
    [[1.0, 2.0], [0.0, 0.0]]
    """
    by_jax = is_by_jax(derivatives)
    interpreter.prepare()

    @contextmanager
    def called(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield function(*args, **kwargs)

    @functools.wraps(function, updated=())
    def call(*args: Any, rng: Any = None, **kwargs: Any) -> Any:
        return run(called, function, args, kwargs, rng, by_jax=by_jax)

    return call


def is_by_jax(derivatives: str) -> bool:
    """Return whether JAX is to differentiate the operators."""
    if derivatives not in ("torch", "jax"):
        raise ValueError(f'derivatives is "torch" or "jax", not {derivatives!r}')
    return derivatives == "jax"


def run(
    called: Callable[..., Any],
    function: Any,
    args: tuple,
    kwargs: dict[str, Any],
    rng: Any,
    host: bool = False,
    by_jax: bool = False,
) -> Any:
    """Run a function on arrays.

    ``called`` takes its arguments to a context that gives its result; ``function`` is named in
    errors. ``host``: see :class:`FunctionRun`; ``by_jax``: JAX differentiates the operators.
    """
    leaves, structure = trees.flatten((args, kwargs))
    leaves = [_given(leaf, function) for leaf in leaves]
    static = [_ARRAY if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    narrow = crossing.is_narrow()
    form: list[Any] = []  # of the last result: its structure, and leaves that are no tensors

    @contextmanager
    def program(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        given = map(functools.partial(crossing.argument, narrow=narrow), tensors)
        filled = [next(given) if leaf is _ARRAY else leaf for leaf in static]
        args, kwargs = trees.unflatten(structure, filled)
        with called(*args, **kwargs) as result:
            found, tree = trees.flatten(result)
            form[:] = tree, [_ARRAY if isinstance(r, torch.Tensor) else r for r in found]
            yield [r for r in found if isinstance(r, torch.Tensor)]

    begin = functools.partial(FunctionRun, function, host=host, refuse_stops=by_jax)
    if not (rng is None or isinstance(rng, jax.Array)):
        raise TypeError(f"rng is a jax.random.key, not a {type(rng).__name__}")
    words = interpreter.key_words(rng)
    if by_jax:
        with running(program, begin, words, arrays) as (_, made):
            _refuse_functions(made, function)
            results = iter([crossing.out(result, narrow) for result in made])
    else:
        results = iter(Differentiable(program, begin).call(words, arrays))
    tree, others = form
    return trees.unflatten(tree, [next(results) if one is _ARRAY else one for one in others])


def _given(leaf: Any, function: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        raise TypeError(
            f"{names.of_function(function)} is a function of JAX here: it takes arrays, not "
            "tensors. Call the PyTorch function for these"
        )
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"{names.of_function(function)} gets a jax.random.key as an argument, which is no "
            "tensor: give it as rng=, and PyTorch's random functions draw from it"
        )
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def _refuse_functions(results: list[torch.Tensor], function: Any) -> None:
    """Raise if an ``autograd.Function`` has a backward pass of its own."""
    for node in autograd_nodes.nodes(results):
        # one of this package's, whose backward pass JAX has too
        is_own = getattr(type(node), "_forward_cls", type).__module__.startswith("torch_jax.")
        if isinstance(node, torch.autograd.function.BackwardCFunction) and not is_own:
            name = type(node).__name__.removesuffix("Backward")
            raise NotTraceableError(
                f"{names.of_function(function)} runs {name}, an "
                "autograd.Function, whose backward JAX would not see with "
                'derivatives="jax": use derivatives="torch"'
            )
