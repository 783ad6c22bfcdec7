"""Calls that look alike: one function meets views that differ in one thing only.

Every executor finds compiled code by a key of its arguments. Whatever a key leaves out must not
matter, so the same function is called with views of the same shape and dtype that differ in
offset, strides, the dtype of the memory behind them, and lazy conjugation and negation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import executors
from tests.support.compare import assert_same


def _parts(memory: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """All views of ``size`` float32 elements over a flat memory of 2 * size complex numbers."""
    for start in (0, 1, size):
        for numbers in (memory[start : start + size], memory[start : start + size].flip(0)):
            for one in (numbers, numbers.conj()):
                yield from (one.real, one.imag, torch._neg_view(one.real), -one.imag)
    flat = torch.view_as_real(memory).reshape(-1)
    yield from (flat[:size], flat[size : 2 * size], flat[: 2 * size : 2], flat[:1].expand(size))
    yield flat[:size].clone()
    yield flat.view(torch.int32)[:size].view(torch.float32)


def _shapes(view: torch.Tensor) -> Iterator[torch.Tensor]:
    yield view
    yield view.view(1, -1)
    yield view.view(1, -1).t().t()


pytestmark = pytest.mark.filterwarnings("ignore:.* was traced")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "unary": torch.exp,
    "number": lambda x: x * 2,
    "binary": lambda x: x + x.clone(),
    "sum": lambda x: x.sum(),
    "list": lambda x: torch.cat([x, x]),
}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@executors.each
def test_views_that_look_alike(function, size, executor):
    run = executors.by(executor, function)
    memory = torch.randn(2 * size, dtype=torch.complex64)
    pairs = zip(_parts(memory, size), _parts(memory.to("jax"), size), strict=True)
    for on_cpu, on_jax in pairs:
        for cpu, jax in zip(_shapes(on_cpu), _shapes(on_jax), strict=True):
            assert_same(run(jax), function(cpu))


_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "real": lambda x: x.real if x.is_complex() else x,
    "imag": lambda x: x.imag if x.is_complex() else x,
    "conj": torch.conj,
    "negative": torch._neg_view,
    "flip": lambda x: x.flip(0),
    "rest": lambda x: x[1:] if x.numel() > 1 else x,
    "front": lambda x: x[:-1] if x.numel() > 1 else x,
    "steps": lambda x: x[::2],
    "one": lambda x: x[-1:],
    "expand": lambda x: x[:1].expand(3),
    "bits": lambda x: x if x.is_complex() else x.clone().view(torch.int32).view(torch.float32),
    "numbers": lambda x: torch.view_as_real(x.resolve_conj()).flatten() if x.is_complex() else x,
}


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(sorted(_VIEWS)), max_size=5), st.integers(1, 4), st.data())
def test_chains_of_views(chain, size, data):
    """Views of views, in any order; all examples share the kernels' compiled entries."""
    memory = torch.complex(torch.arange(1.0, size + 1), -10 * torch.arange(1.0, size + 1))
    cpu, jax = memory, memory.to("jax")
    for name in chain:
        cpu, jax = _VIEWS[name](cpu), _VIEWS[name](jax)
        assert_same(jax, cpu)
    other = data.draw(st.sampled_from(["view", "memory"]))
    if other == "memory" and cpu.shape == memory.shape:
        assert_same(jax + memory.to("jax"), cpu + memory)
    assert_same(jax * 2, cpu * 2)
    assert_same(jax.sum(), cpu.sum())
