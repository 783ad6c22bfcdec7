"""If a lowering cannot serve a call, the error is that of the CPU: its type, and its text."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F

from tests.support import executors
from tests.support.compare import check, to_jax

aten = torch.ops.aten
ZERO = torch.tensor([0])
CASES = {
    "index": (lambda x, i: x[i], torch.ones(0), ZERO),
    "index of a dim": (lambda x, i: x[:, i], torch.ones(2, 0), ZERO),
    "index_select": (lambda x, i: x.index_select(0, i), torch.ones(0), ZERO),
    "max": (lambda x: x.max(), torch.ones(0)),
    "reflection_pad1d": (lambda x: aten.reflection_pad1d(x, [1, 1]), torch.ones(1, 2, 3, 4)),
    "reflection_pad2d": (lambda x: aten.reflection_pad2d(x, [1] * 4), torch.ones(1, 2, 2, 3, 4)),
    "replication_pad1d": (lambda x: aten.replication_pad1d(x, [1, 1]), torch.ones(1, 2, 3, 4)),
    "ctc_loss": (
        lambda x, y: F.ctc_loss(x, y, (0, 0), (1, 1)),
        torch.zeros(0, 2, 3),
        torch.zeros(2, 1, dtype=torch.int64),
    ),
    "ctc_loss of no batch": (
        lambda x, y: F.ctc_loss(x, y, (), ()),
        torch.zeros(3, 0, 3),
        torch.zeros(0, 1, dtype=torch.int64),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_errors_are_those_of_the_cpu(case):
    function, *inputs = CASES[case]
    with pytest.raises(Exception) as expected:
        function(*inputs)
    before = torch.get_rng_state()
    with pytest.raises(expected.type) as actual:
        function(*to_jax(inputs))
    assert type(actual.value) is expected.type
    assert str(actual.value).startswith(str(expected.value).rstrip())
    assert "in aten." in str(actual.value)
    assert torch.equal(torch.get_rng_state(), before)


F32 = torch.ones
REFUSED_BY_METAS = {
    "add": (lambda x, y: x + y, F32(64), F32(16)),
    "add_": (lambda x, y: x.add_(y), F32(3), F32(2, 3)),
    "add of many": (lambda x, y: x + y, F32(64, 3, 99, 99), F32(64, 3, 99, 98)),
    "addcdiv": (lambda x, y: x.addcdiv(x, y), F32(2, 3), F32(2, 4)),
    "amax out": (lambda x, y: torch.amax(x, 0, out=y), F32(2, 3), torch.ones(3).long()),
    "bmm": (lambda x, y: x.bmm(y), F32(2, 3, 4), F32(2, 3, 4)),
    "cat": (lambda x, y: torch.cat([x, y]), F32(2, 3), F32(2)),
    "clamp": (lambda x: x.clamp(), F32(2)),
    "conv": (lambda x, y: F.conv2d(x, y, stride=0), F32(1, 2, 4, 4), F32(2, 2, 1, 1)),
    "expanded": (lambda x: x.expand(2, 3).add_(1), F32(3)),
    "gather": (lambda x, y: x.gather(0, y.long()), F32(2, 3), F32(2, 3, 4)),
    "isposinf out": (lambda x, y: torch.isposinf(x, out=y), F32(2), F32(2)),
    "linear": (F.linear, F32(2, 3), F32(2, 4)),
    "mean": (lambda x: x.mean(), torch.ones(2).long()),
    "topk": (lambda x: x.topk(9), F32(2, 3)),
}


@pytest.mark.parametrize("case", REFUSED_BY_METAS)
def test_what_metas_refuse_is_said_in_the_words_of_kernels(case):
    function, *inputs = REFUSED_BY_METAS[case]
    with pytest.raises(Exception) as expected:
        function(*(x.clone() for x in inputs))
    with pytest.raises(expected.type) as actual:
        function(*to_jax(inputs))
    assert type(actual.value) is expected.type
    assert str(actual.value).partition(" (in aten.")[0] == str(expected.value)


def test_a_copy_of_another_shape_has_the_words_of_the_cpu():
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match"):
        torch.ones(2, 3, device="jax").copy_(torch.ones(4, device="jax"))


def test_a_traced_call_raises_the_same():
    x = torch.ones(1, 2, 3, 4, device="jax")
    with pytest.raises(RuntimeError, match="Expected 2D or 3D"):
        executors.by("jit", lambda x: aten.reflection_pad1d(x + 1, [1, 1]))(x)


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_metas_refuse_nothing_of_another_device_as_not_deterministic(mode):
    torch.set_deterministic_debug_mode(mode)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(lambda x: x.median(1), torch.rand(3, 4))
            check(lambda x: torch.histc(x, 7), torch.rand(9))
        assert torch.get_deterministic_debug_mode() == ["default", "warn", "error"].index(mode)
    finally:
        torch.set_deterministic_debug_mode("default")


def test_more_dimensions_than_an_array_can_have():
    for make in (lambda: torch.empty([1] * 65, device="jax"), lambda: to_jax(torch.ones([1] * 65))):
        with pytest.raises(RuntimeError, match="up to 64 dimensions"):
            make()
    check(lambda x: x + 1, torch.ones([1] * 64))


def asserting(x):
    torch._assert_async((x > 0).all(), "all must be positive")
    return x * 2


@pytest.mark.parametrize("executor", executors.EXECUTORS)
def test_asserted_tensors_are_asked_for_their_value(executor):
    run, x = executors.by(executor, asserting), torch.ones(3, device="jax")
    assert run(x).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="all must be positive"):
        run(-x)


@pytest.mark.parametrize("name", ["add", "add_"])
def test_errors_of_other_devices_have_no_other_error_as_their_context(name):
    with pytest.raises(RuntimeError, match="same device") as caught:
        getattr(torch.ones(2, device="jax"), name)(torch.ones(2))
    assert caught.value.__context__ is None
