"""Views that differ only in where they begin: one lens, one compiled entry, the right part."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import executors
from tests.support.compare import assert_same
from torch_jax.dispatch.ladder import KERNELS_BY_OP, forget_compiled
from torch_jax.memory import geometry, windows


@st.composite
def _slices(draw):
    """A shape, and for each of its axes an integer or a slice."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    index = []
    for n in shape:
        start = draw(st.integers(0, n - 1))
        stop, step = draw(st.integers(start + 1, n)), draw(st.integers(1, 3))
        index.append(draw(st.sampled_from([start, slice(start, stop, step), slice(None)])))
    return shape, tuple(index)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(_slices())
def test_what_a_place_reads_and_writes(case):
    shape, index = case
    memory = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    view = torch.from_numpy(memory)[index]
    found = windows.place(
        shape, memory.dtype, tuple(view.shape), view.stride(), view.storage_offset(), memory.dtype
    )
    lens = windows.at(found.lens, found.starts)
    np.testing.assert_array_equal(geometry.read(memory, lens), view.numpy())
    new = -1 - np.arange(view.numel(), dtype=np.float32).reshape(tuple(view.shape))
    expected = memory.copy()
    expected[index] = new
    np.testing.assert_array_equal(geometry.write(memory, lens, new), expected)


@settings(max_examples=100, deadline=None)
@given(_slices())
def test_equal_numbers_mean_equal_lenses(case):
    """The number stands for the lens in keys, so it must tell all of it but the starts."""
    shape, index = case
    whole = torch.empty(shape)
    view = whole[index]
    dtype = np.dtype(np.float32)
    known: dict[int, tuple] = {}
    for offset in range(whole.numel()):
        reach = offset + sum((n - 1) * s for n, s in zip(view.shape, view.stride(), strict=True))
        if reach < whole.numel():
            key = shape, dtype, tuple(view.shape), view.stride(), offset, dtype
            found = windows.place(*key)
            assert known.setdefault(found.number, found.lens) == found.lens
            assert windows.place(*key) is found


def test_starts_become_a_device_array_when_they_come_again():
    dtype = np.dtype(np.float32)
    found = windows.place((50, 3), dtype, (3,), (1,), 21, dtype)
    given = [found.given() for _ in range(20)]
    assert isinstance(given[0], np.ndarray) and not isinstance(given[-1], np.ndarray)
    assert {tuple(np.asarray(g).tolist()) for g in given} == {(7, 0)}


def _entries(op) -> int:
    return len(KERNELS_BY_OP[op].cache)


@pytest.mark.usefixtures("eager_by_xla")
def test_slices_of_one_size_are_one_entry():
    x = torch.randn(7, 5, 6)
    y = x.to("jax")
    forget_compiled()
    for i in range(7):
        for j in range(3):
            assert_same(y[i, j : j + 2].exp(), x[i, j : j + 2].exp())
            assert_same(y[:, j, i % 6 :: 6].sin(), x[:, j, i % 6 :: 6].sin())
            assert_same(y.unfold(0, 3, 1)[j : j + 2].cos(), x.unfold(0, 3, 1)[j : j + 2].cos())
    for op in (torch.ops.aten.exp, torch.ops.aten.sin, torch.ops.aten.cos):
        assert _entries(op.default) == 1


@pytest.mark.usefixtures("eager_by_xla")
def test_writes_to_slices_of_one_size_are_one_entry():
    x = torch.zeros(6, 8)
    y = x.to("jax")
    forget_compiled()
    for t in (x, y):
        for i in range(6):
            t[i] += i
            t[:, i : i + 2] *= 2
            t[i, ::3] = t[i, 1::3].sum()
    assert_same(y, x)
    assert _entries(torch.ops.aten.add_.Tensor) == 1
    assert _entries(torch.ops.aten.mul_.Tensor) == 1


@executors.each
def test_integers_that_shift(executor):
    """Operators that take an integer as an input: every value, also after others of one entry."""
    x = torch.randn(4, 6)
    y = x.to("jax")
    for i in range(-7, 8):

        def program(t, i=i):
            return t.roll(i), t.roll((i, 1), (0, 1)), t.tril(i), t.triu(i)

        assert_same(executors.by(executor, program)(y), program(x))


@pytest.mark.parametrize("step", [1, 2])
def test_gradients_of_slices(step):
    """``select_backward`` and ``slice_backward`` compile once for all places."""
    x = torch.randn(5, 7, requires_grad=True)
    y = x.detach().to("jax").requires_grad_()
    for t in (x, y):
        loss = torch.zeros((), device=t.device)
        for i in range(-5, 5):
            loss = loss + i * (t[i] ** 2).sum() + (t[:, i % 3 : i % 3 + 4 : step] ** 3).sum()
        loss.backward()
    assert_same(y.grad, x.grad)


def test_slice_backward_takes_what_python_takes():
    grad = torch.randn(2, 3)
    for start, end in ((0, 2), (1, 3), (-2, 9223372036854775807), (-99, 2)):
        args = [5, 3], 0, start, end, 1
        assert_same(
            torch.ops.aten.slice_backward(grad.to("jax"), *args),
            torch.ops.aten.slice_backward(grad, *args),
        )
