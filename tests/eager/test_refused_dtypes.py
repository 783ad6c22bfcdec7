"""Dtypes that the CPU's kernels do not take, which JAX would compute with."""

from __future__ import annotations

import time
import warnings

import pytest
import torch
import torch.nn.functional as F

import torch_jax
from tests.support.compare import assert_same, check, check_raises, to_jax
from torch_jax.eager import refusals

INTS = torch.tensor([[1, 2, 30]])
IMAGE = torch.arange(16).view(1, 1, 4, 4)
FLOATS = torch.ones(2, 3)
REFUSED = {
    "softmax": (lambda x: x.softmax(1), INTS),
    "bits of two dtypes": (torch.bitwise_and, INTS, INTS.to(torch.uint16)),
    "logic of two dtypes": (torch.logical_and, INTS, INTS.to(torch.uint16)),
    "softmax by another kernel": (lambda x: x.softmax(0), INTS),
    "cross entropy": (F.cross_entropy, INTS, torch.tensor([2])),
    "gelu": (F.gelu, INTS),
    "gelu of bytes": (F.gelu, INTS.byte()),
    "softshrink": (F.softshrink, INTS),
    "relu": (F.relu, INTS.cfloat()),
    "relu of bools": (F.relu, INTS.bool()),
    "bool products": (torch.mm, torch.ones(2, 2).bool(), torch.ones(2, 2).bool()),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
    "grid": (F.grid_sample, IMAGE, torch.zeros(1, 2, 2, 2).long()),
    "sort": (torch.sort, INTS.cfloat()),
    "topk": (lambda x: x.topk(2), INTS.bool()),
    "in place": (lambda x: F.hardtanh_(x), INTS.cfloat()),
    "a complex number, in place": (lambda x: x.sub_(1j), FLOATS),
    "a sum's relu, in place": (lambda x: torch.ops.aten._add_relu_.Scalar(x, 1j), FLOATS),
    "window": (lambda x: torch.hamming_window(3, dtype=x.dtype, device=x.device), INTS.cfloat()),
    "integers": (lambda x: torch.randint(3, (2,), dtype=x.dtype, device=x.device), INTS.cfloat()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_as_on_the_cpu(case):
    function, *inputs = REFUSED[case]
    for _ in range(2):
        with pytest.raises(Exception) as expected:
            function(*(x.clone() for x in inputs))
        with pytest.raises(expected.type) as actual:
            function(*to_jax(inputs))
        assert type(actual.value) is expected.type
        assert str(actual.value).partition(" (in aten.")[0] == str(expected.value).strip("\n")


def test_floats_of_two_dtypes_are_refused_where_calls_are_recorded():
    with torch_jax.lazy():
        check_raises(torch.heaviside, FLOATS, FLOATS.double())


OUTPUTS = {
    "logcumsumexp": lambda x, y: torch.logcumsumexp(x, 0, out=y),
    "softmax": lambda x, y: torch.softmax(x, 0, out=y),
    "median": lambda x, y: torch.median(x, 0, out=(y, torch.empty_like(y, dtype=torch.int64))),
    "histc": lambda x, y: torch.histc(x, out=y),
    "renorm": lambda x, y: torch.renorm(x, 2, 0, 1, out=y),
    "cumsum": lambda x, y: torch.cumsum(x, 0, dtype=torch.float32, out=y),
    "cross": lambda x, y: torch.linalg.cross(x, x, out=y),
    "cat": lambda x, y: torch.cat([x, x], out=y.long()),
    "nansum": lambda x, y: torch.nansum(x, out=y.long()),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_of_another_dtype_are_refused(case):
    check_raises(OUTPUTS[case], FLOATS, FLOATS.double())


def test_outputs_of_another_dtype_are_taken():
    check(lambda x, y: torch.add(x, x, out=y), FLOATS, FLOATS.double())
    check(lambda x, y: torch.sum(x, 0, out=y), FLOATS, torch.ones(3).double())
    check(lambda x, y: torch.bernoulli(x, out=y), FLOATS, torch.zeros(2, 3).long())


def test_what_accelerators_take_is_computed():
    j0 = torch.special.bessel_j0
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.tensor([0.0, 0.5], dtype=dtype)
        with pytest.raises(NotImplementedError):
            j0(x)
        torch.testing.assert_close(j0(x.to("jax")).cpu(), j0(x.float()).to(dtype))
    small = torch.tensor([0.5, 1.5]).to(torch.float8_e4m3fn)
    with pytest.raises(NotImplementedError):
        small + small
    assert (small.to("jax") + small.to("jax")).float().tolist() == [1.0, 3.0]


def test_the_cpu_is_asked_once_for_dtypes_without_its_warnings(monkeypatch):
    asked = []
    ask = refusals._wide_twins
    monkeypatch.setattr(refusals, "_wide_twins", lambda *given: asked.append(1) or ask(*given))
    monkeypatch.setattr(refusals, "_taken", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (2, 3, 4, 5):
            torch.ones(n, device="jax").long() & torch.ones(n, device="jax").long()
        torch.ones(5, device="jax") * 2
    assert len(asked) == 1


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.Tensor.__ifloordiv__])
def test_a_division_by_the_number_zero_is_no_answer_about_dtypes(divide, monkeypatch):
    monkeypatch.setattr(refusals, "_taken", set())
    for number in (0, 2, 0, 3):
        call = check if number else check_raises
        call(lambda x, number=number: divide(x, number), INTS.byte())


def test_the_default_generator_of_the_cpu_stays_where_it_is():
    before = torch.get_rng_state()
    for draw in (torch.bernoulli, torch.Tensor.exponential_, torch.rand_like):
        with pytest.raises((RuntimeError, NotImplementedError)):
            draw(to_jax(INTS.clone()))
    torch.randint(3, (2,), device="jax")
    torch.randperm(4, device="jax")
    assert torch.equal(torch.get_rng_state(), before)


def test_large_tensors_do_not_run_on_the_cpu():
    x = torch.zeros(2, 1 << 23, dtype=torch.uint8, device="jax")
    begin = time.process_time()
    with pytest.raises(NotImplementedError, match="not implemented for 'Byte'"):
        F.gelu(x)
    assert time.process_time() - begin < 1


def test_user_overrides_take_what_they_like():
    env = torch_jax.default_env()
    with env.override(torch.ops.aten.gelu.default, lambda self, *, approximate="none": self * 2):
        assert F.gelu(to_jax(INTS)).tolist() == [[2, 4, 60]]


def test_integers_that_cuda_takes_are_counted():
    values = torch.tensor([0, 1, 1, 3], dtype=torch.int32)
    counts = torch.histc(values.to("jax"), 4, 0, 3)
    assert_same(counts, torch.histc(values.float(), 4, 0, 3).int())
