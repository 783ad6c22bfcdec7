"""Every entry of PyTorch's operator database by its own kernels: the CPU's bits and strides."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torch_jax
from tests.conformance.checks import apply, arguments_of, gradients_of, outcome
from tests.conformance.gaps import OTHER_LAYOUTS
from tests.conformance.samples import differentiable, due, entries, samples, spread
from tests.conformance.unique import is_random
from tests.support.arguments import on
from torch_jax import config

SAMPLES = 2  # of an entry and dtype

LEFT_OUT: dict[str, list[str]] = {
    "memory that nobody has written": [
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    ],
    "complex32 has no twin in JAX": ["chalf", "complex", "view_as_complex"],
    "PyTorch adds up short floats in another order on the CPU": [
        "nn.functional.linear_cross_entropy.chunked",
        "nn.functional.linear_cross_entropy.chunked_none",
    ],
    "the last place depends on where memory lies": ["linalg.lstsq", "linalg.lstsq.grad_oriented"],
}  # fmt: skip
BY_XLA = ["nn.functional.ctc_loss"]  # when recorded: how many lengths there are is asked for
_LEFT_OUT = {name for names in LEFT_OUT.values() for name in names} | set(OTHER_LAYOUTS)


@pytest.mark.parametrize(
    "entry", [e for e in entries() if e.full_name not in _LEFT_OUT], ids=lambda e: e.full_name
)
def test_results_and_gradients_are_the_cpus(entry):
    with warnings.catch_warnings(), config.temporarily("eager_on_cpu", "torch"):
        warnings.simplefilter("ignore")
        for dtype in due(entry):
            for sample in spread(samples(entry, dtype), SAMPLES):
                if not is_random(entry.full_name, *arguments_of(sample)):
                    for call in _calls(entry, dtype, sample):
                        _assert_same(call, sample)


@pytest.mark.parametrize(
    "entry",
    [e for e in entries() if e.full_name not in {*_LEFT_OUT, *BY_XLA}],
    ids=lambda e: e.full_name,
)
def test_recorded_operators_that_run_one_by_one_are_the_cpus(entry):
    """Kernels round otherwise where results lie in another order in memory."""
    settings = {"eager_on_cpu": "torch", "compiled_from_run": 10**9}
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        for name, value in settings.items():
            stack.enter_context(config.temporarily(name, value))
        for dtype in due(entry)[:1]:
            for sample in spread(samples(entry, dtype), 1):
                if not is_random(entry.full_name, *arguments_of(sample)):
                    for call in _calls(entry, dtype, sample):
                        expected, error = outcome(call, on("jax", arguments_of(sample)))
                        for _ in range(2):  # what is new runs at once; what comes again does not
                            given = on("jax", arguments_of(sample))
                            actual, ours = outcome(_recorded(call), given)
                            assert type(ours) is type(error), (ours, error)
                            torch.testing.assert_close(actual, expected, equal_nan=True)


def _recorded(call: Any) -> Any:
    def lazily(*args: Any, **kwargs: Any) -> Any:
        with torch_jax.lazy():
            return call(*args, **kwargs)

    return lazily


def _calls(entry: Any, dtype: torch.dtype, sample: Any) -> Iterator[Any]:
    yield functools.partial(apply, entry.op)
    if differentiable(entry, dtype):
        yield functools.partial(gradients_of, entry, sample)


def _assert_same(call: Any, sample: Any) -> None:
    expected, error = outcome(call, on("cpu", arguments_of(sample)))
    actual, ours = outcome(call, on("jax", arguments_of(sample)))
    assert type(ours) is type(error), (ours, error)
    pairs = zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
    for one, other in pairs:
        if isinstance(other, torch.Tensor):
            _assert_equal(one.detach(), other.detach())
        else:
            assert one == other


def _assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert not expected.numel() or actual.stride() == expected.stride()
    host = actual.cpu()
    assert ((host == expected) | ((host != host) & (expected != expected))).all()
