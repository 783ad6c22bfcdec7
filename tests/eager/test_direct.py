"""Calls of executables past ``jax.jit``: those that fit, and the same results for all others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_jax
from torch_jax.budgets import CALLS_BEFORE_DIRECT
from torch_jax.compiler import direct as directly
from torch_jax.core.x64 import x64
from torch_jax.eager.given_numbers import number_input


def _compiled(function, *args):
    """The function as an operator calls it, a list of the calls of ``jax.jit``, and its end."""
    jitted, calls, ends = jax.jit(function), [], []
    jitted(*args)

    def counted(*args):
        calls.append(args)
        return jitted(*args)

    counted.lower = jitted.lower
    return directly.direct(counted, args, ends.append), calls, ends


def test_arrays_of_the_type_go_to_the_executable():
    a, b = jnp.arange(4.0), jnp.ones(4)
    for function, args in (
        (lambda a: -a, (a,)),
        (lambda a, b: a * b + 1, (a, b)),
        (lambda a, b, c: a * b + c, (a, b, b)),
    ):
        call, calls, _ = _compiled(function, *args)
        assert directly.needs_no_x64(call)
        assert np.array_equal(call(*args), function(*args))
        assert not calls
    call, calls, _ = _compiled(lambda a, b: [a + b, a - b], a, b)
    assert [x.tolist() for x in call(a, b)] == [(a + b).tolist(), (a - b).tolist()]
    assert not calls


def test_other_arguments_go_to_jit():
    a, b = jnp.arange(4.0), jnp.ones(4)
    call, calls, ends = _compiled(lambda a, b: a + b, a, b)
    others = [jnp.arange(4), a[:2], a[None], np.ones(4, np.float32), 2.0, jnp.float16(1)]
    for n, other in enumerate(others, start=1):
        expected = b[:2] if other is others[1] else b
        assert np.array_equal(call(other, expected), other + expected)
        assert len(calls) == n
    assert not ends
    for _ in range(CALLS_BEFORE_DIRECT):
        call(1.0, b)
    assert ends


def test_programs_of_more_than_buffers_are_left_to_jit():
    a = jnp.ones(3)
    for function in (
        lambda a, unused: a + 1,
        lambda a, b: jax.pure_callback(lambda x: np.asarray(x) + 1, a, a) + b,
    ):
        call, calls, _ = _compiled(function, a, a)
        call(a, a)
        assert len(calls) == 1


def test_traces_and_searches_for_nans_see_each_call():
    a = jnp.ones(3)
    call, calls, _ = _compiled(lambda a: jnp.log(a), a)
    jaxpr = jax.make_jaxpr(lambda x: call(x))(a)
    assert len(jaxpr.eqns) == 1
    jax.config.update("jax_debug_nans", True)
    try:
        with pytest.raises(FloatingPointError):
            call(-a)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert len(calls) == 2


def test_a_deleted_array_is_an_error_as_before():
    a = jnp.ones(3) * 2
    call, _, ends = _compiled(lambda a: a + 1, a)
    a.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        call(a)
    assert ends


def test_a_hot_operator_is_called_directly_with_the_same_results():
    x = torch.randn(3, 5)
    y = x.to("jax")
    for n in range(300):
        assert torch.equal((y * y).cpu(), x * x)
        assert torch.equal((y + (n % 3)).cpu(), x + (n % 3))
    assert torch.equal((y.view(torch.int32) * 2).cpu(), x.view(torch.int32) * 2)


def test_an_array_in_another_order_is_taken_in_its_own():
    from jax.experimental.layout import Format, Layout

    plain = jnp.arange(6.0).reshape(2, 3)
    turned = jax.device_put(plain, Format(Layout((1, 0)), plain.sharding))
    x, y = torch_jax.from_jax(plain), torch_jax.from_jax(turned)
    for _ in range(300):
        x + x
    assert torch.equal((y + y).cpu(), (x + x).cpu())


@pytest.mark.parametrize(
    "one, other",
    [(0.0, -0.0), (1, True), (1, 1.0), (0, False), (complex(1, 0.0), complex(1, -0.0))],
)
def test_equal_numbers_are_told_apart(one, other):
    with x64():
        for number in (one, other, one, other, one, other):
            given = np.asarray(number_input(number))
            assert given.dtype == np.asarray(jnp.asarray(number)).dtype
            assert given.tobytes() == np.asarray(jnp.asarray(number)).tobytes()


def test_a_nan_is_kept_and_zeros_keep_their_sign():
    x = torch.tensor([2.0, -2.0]).to("jax")
    for _ in range(4):
        assert (x * float("nan")).isnan().all()
        assert (x * 0.0).signbit().tolist() == [False, True]
        assert (x * -0.0).signbit().tolist() == [True, False]
    assert isinstance(number_input(float("nan")), jax.Array)
    assert isinstance(number_input(0.0), jax.Array)
