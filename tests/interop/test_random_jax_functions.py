"""Random JAX functions, called by each executor, against JAX alone: values and gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import executors
from torch_jax import call_jax
from torch_jax.core import trees
from torch_jax.core.x64 import x64_as

_SHAPES = [(), (1,), (3,), (2, 3), (2, 1), (0, 3)]
_DTYPES = [np.float32, np.float32, np.float64, np.int32, np.bool_, np.complex64]
_UNARY = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "stop": jax.lax.stop_gradient,
    "sum": lambda x: jnp.sum(x, axis=0) if x.ndim else x,
    "flip": jnp.flip,
    "abs": jnp.abs,
    "positive": lambda x: jnp.real(x) > 0,
    "whole": lambda x: jnp.nan_to_num(jnp.real(x)).astype(jnp.int32),
    "row": lambda x: x[0] if x.ndim and x.shape[0] else x,
    "conj": jnp.conj,
    "wide": lambda x: jnp.broadcast_to(x, (2, *x.shape)),
}
_BINARY = {
    "add": jnp.add,
    "mul": jnp.multiply,
    "where": lambda x, y: jnp.where(jnp.real(x) > 0, x, y),
    "larger": lambda x, y: jnp.maximum(jnp.real(x), jnp.real(y)),
    "scan": lambda x, y: jax.lax.fori_loop(0, 2, lambda _, z: z * 0.5, x * 1.0 + y),
}


class Drawn(NamedTuple):
    """A function: the forms of its arguments, its steps, its results, and their trees."""

    forms: tuple[tuple[tuple[int, ...], Any], ...]
    steps: tuple[tuple[str, int, int], ...]
    results: tuple[int, ...]
    tree_in: str
    tree_out: str


_drawn = st.builds(
    Drawn,
    st.lists(
        st.tuples(st.sampled_from(_SHAPES), st.sampled_from(_DTYPES)), min_size=1, max_size=3
    ).map(tuple),
    st.lists(
        st.tuples(st.sampled_from([*_UNARY, *_BINARY]), st.integers(0, 50), st.integers(0, 50)),
        min_size=1,
        max_size=6,
    ).map(tuple),
    st.lists(st.integers(0, 50), min_size=1, max_size=3).map(tuple),
    st.sampled_from(["dict", "tuple", "nested"]),
    st.sampled_from(["dict", "tuple", "nested"]),
)


def _tree(kind: str, leaves: list[Any]) -> Any:
    if kind == "dict":
        return {f"k{9 - at}": leaf for at, leaf in enumerate(leaves)}
    return tuple(leaves) if kind == "tuple" else [None, {"a": leaves[0], "b": (leaves[1:],)}]


def _function(drawn: Drawn) -> Any:
    def of_jax(tree: Any) -> Any:
        values, _ = trees.flatten(tree)
        for name, first, second in drawn.steps:
            x, y = values[first % len(values)], values[second % len(values)]
            try:
                values.append(_UNARY[name](x) if name in _UNARY else _BINARY[name](x, y))
            except (TypeError, ValueError):  # shapes that do not broadcast, dtypes that do not suit
                continue
        # the last ones, which hang on the most steps
        return _tree(drawn.tree_out, [values[-1 - at % len(values)] for at in drawn.results])

    return of_jax


def _arguments(drawn: Drawn) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype(dtype) for shape, dtype in drawn.forms]


def _is_inexact(value: Any) -> bool:
    return np.issubdtype(value.dtype, np.inexact)


def _alone(drawn: Drawn) -> tuple[list[Any], list[Any]]:
    """What JAX gives, with the gradients of the arguments that have some."""
    arguments = _arguments(drawn)
    wanted = [at for at, value in enumerate(arguments) if _is_inexact(value)]

    def flat(*some: Any) -> tuple[list[Any], list[Any]]:
        given: list[Any] = list(arguments)
        for at, value in zip(wanted, some, strict=True):
            given[at] = value
        leaves, _ = trees.flatten(
            _function(drawn)(_tree(drawn.tree_in, list(map(jnp.asarray, given))))
        )
        return [leaf for leaf in leaves if _is_inexact(leaf)], leaves

    with x64_as(any(a.dtype == np.float64 for a in arguments)):
        inexact, back, leaves = jax.vjp(flat, *(arguments[at] for at in wanted), has_aux=True)
        gradients = back([jnp.ones_like(one) for one in inexact]) if wanted else ()
        return list(map(np.asarray, leaves)), [np.conj(np.asarray(g)) for g in gradients]


def _by(executor: str, drawn: Drawn) -> tuple[list[Any], list[Any]]:
    """The same by PyTorch."""
    function = _function(drawn)
    tensors = [torch.tensor(value).to("jax") for value in _arguments(drawn)]
    wanted = [t.requires_grad_() for t in tensors if t.is_floating_point() or t.is_complex()]

    def run(*tensors: torch.Tensor) -> tuple[list[Any], list[Any]]:
        leaves, _ = trees.flatten(call_jax(function, _tree(drawn.tree_in, list(tensors))))
        roots = [leaf for leaf in leaves if leaf.requires_grad]
        gradients: Any = [None] * len(wanted)
        if roots:
            ones = [torch.ones_like(root) for root in roots]
            gradients = torch.autograd.grad(roots, wanted, ones, allow_unused=True)
        return [leaf.detach() for leaf in leaves], list(gradients)

    with np.errstate(all="ignore"):
        return executors.by(executor, run)(*tensors)


def _check(executor: str, drawn: Drawn) -> None:
    values, gradients = _alone(drawn)
    own, own_gradients = _by(executor, drawn)
    for found, expected in zip(own, values, strict=True):
        assert found.cpu().numpy().dtype == expected.dtype
        np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=2e-5, atol=2e-5)
    for found, expected in zip(own_gradients, gradients, strict=True):
        found = np.zeros_like(expected) if found is None else found.cpu().numpy()
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


_SETTINGS = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["eager", "lazy", "jit"])
@given(drawn=_drawn)
@settings(_SETTINGS, max_examples=5)
def test_some(executor, drawn):
    _check(executor, drawn)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["eager", "lazy", "jit"])
@given(drawn=_drawn)
@settings(_SETTINGS, max_examples=250)
def test_many(executor, drawn):
    _check(executor, drawn)
