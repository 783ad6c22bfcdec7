"""Sums and maxima of rows and columns: their results, and that XLA keeps no parts of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torch_jax.ops import norm, sums


@pytest.mark.slow
@given(rows=st.integers(0, 130), length=st.sampled_from([0, 1, 63, 64, 96, 100, 384, 1024, 1032]))
@example(rows=64, length=384)
@settings(max_examples=20, deadline=None)
def test_sums_and_maxima_are_numpys(rows, length):
    x = np.random.RandomState(rows).randn(2, rows, length).astype(np.float32)
    if length:
        close(sums.row_sum(jnp.asarray(x)), x.sum(-1, keepdims=True, dtype=np.float64))
        close(sums.row_mean(jnp.asarray(x)), x.mean(-1, keepdims=True, dtype=np.float64))
        assert (np.asarray(sums.row_max(jnp.asarray(x))) == x.max(-1, keepdims=True)).all()
    for dims in (1, 2):
        over = tuple(range(dims))
        close(sums.column_sum(jnp.asarray(x), dims), x.sum(over, dtype=np.float64))


def close(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_where_it_is(bad):
    x = np.ones((64, 128), np.float32)
    x[3, 100] = bad
    total, largest = (f(jnp.asarray(x)) for f in (sums.row_sum, sums.row_max))
    expected = x.sum(-1, keepdims=True), x.max(-1, keepdims=True)
    np.testing.assert_array_equal(total, expected[0])
    np.testing.assert_array_equal(largest, expected[1])
    np.testing.assert_array_equal(sums.column_sum(jnp.asarray(x), 1), x.sum(0))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="these forms are the CPU's")
def test_the_gradient_of_layer_norm_keeps_no_parts_of_sums():
    x, weight = jnp.ones((4, 64, 128)), jnp.ones(128)
    moment = jnp.ones((4, 64, 1))

    def gradient(grad, x, mean, rstd, weight):
        given = grad, x, (128,), mean, rstd, weight, weight
        return norm.native_layer_norm_backward(*given, (True, True, True))

    if jax.device_count() == 1:
        program = jax.jit(gradient).lower(x, x, moment, moment, weight).compile().as_text()
        assert "reduce-window" not in program
