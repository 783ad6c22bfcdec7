"""Normalization layers against the CPU."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.compare import assert_same, check, check_raises
from torch_jax.compiler import options
from torch_jax.ops import norm

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def leaf(*shape, dtype=torch.float32, shift=0.0):
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) + shift).to(dtype).requires_grad_(True)


# PyTorch rounds the intermediate sums of half types in its gradient kernels
def scale(dtype):
    return 4.0 if dtype in (torch.bfloat16, torch.float16) else 2.0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5,), (3, 4, 5)])
def test_layer_norm(dtype, shape):
    x, w, b = leaf(2, 3, 4, 5, dtype=dtype), leaf(*shape, dtype=dtype), leaf(*shape, dtype=dtype)
    check(lambda *a: F.layer_norm(a[0], shape, *a[1:]), x, w, b, scale=scale(dtype))
    check(lambda x: F.layer_norm(x, shape), x, scale=scale(dtype))


def test_layer_norm_far_from_zero_and_empty():
    check(lambda x: F.layer_norm(x, (16,)), leaf(4, 16, shift=1000.0), scale=100)
    check(lambda x: F.layer_norm(x, (3,)), leaf(0, 3))
    check_raises(lambda x: F.layer_norm(x, (4,)), torch.randn(2, 3))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 5), (2, 4, 3, 3), (2, 4, 2, 3, 2)])
def test_batch_norm(dtype, training, shape):
    stats = torch.full((4,), 0.5, dtype=dtype), torch.full((4,), 2.0, dtype=dtype)
    args = leaf(*shape, dtype=dtype), *stats, leaf(4, dtype=dtype), leaf(4, dtype=dtype)
    check(lambda *a: F.batch_norm(*a, training=training), *args, scale=scale(dtype))


def test_batch_norm_without_statistics_or_affine():
    check(lambda x: F.batch_norm(x, None, None, training=True), leaf(3, 2, 4))
    check_raises(lambda x: F.batch_norm(x, None, None, training=True), torch.randn(1, 3))


def test_batch_norm_module_keeps_statistics():
    torch.manual_seed(0)
    cpu = nn.BatchNorm2d(3, momentum=None)
    jax = copy.deepcopy(cpu).to("jax")
    for _ in range(3):
        x = torch.randn(2, 3, 4, 4)
        assert_same(jax(x.to("jax")), cpu(x))
    assert_same(list(jax.buffers()), list(cpu.buffers()))
    assert_same(jax.eval()(x.to("jax")), cpu.eval()(x))


def test_explicit_batch_norm_operators():
    x, w, b, m, v = leaf(3, 4, 2).detach(), *(torch.rand(4) for _ in range(4))
    check(torch.ops.aten._native_batch_norm_legit, x, w, b, m, v, True, 0.2, 1e-5)
    check(torch.ops.aten._native_batch_norm_legit.no_stats, x, w, b, True, 0.2, 1e-5)
    check(torch.ops.aten._batch_norm_with_update, x, w, b, m, v, 0.2, 1e-5)
    out = check(lambda *a: torch.ops.aten._batch_norm_no_update(*a)[0], x, w, b, m, v, 0.2, 1e-5)
    assert out.shape == x.shape


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm(dtype, groups):
    args = leaf(2, 4, 3, 3, dtype=dtype), leaf(4, dtype=dtype), leaf(4, dtype=dtype)
    check(lambda x, w, b: F.group_norm(x, groups, w, b), *args, scale=scale(dtype))
    check(lambda x: F.group_norm(x, groups), args[0], scale=scale(dtype))


def test_group_norm_empty():
    check(lambda x: F.group_norm(x, 2), leaf(0, 4, 3))


def test_instance_norm():
    stats = torch.zeros(3), torch.ones(3)
    check(F.instance_norm, leaf(2, 3, 4, 4), *stats, leaf(3), leaf(3))
    check(lambda x, m, v: F.instance_norm(x, m, v, use_input_stats=False), leaf(2, 3, 4), *stats)


@pytest.mark.slow
def test_rms_norm():
    check(lambda x, w: F.rms_norm(x, (5,), w), leaf(2, 4, 5), leaf(5))
    check(lambda x: F.rms_norm(x, (4, 5), eps=0.1), leaf(2, 4, 5))


def test_rms_norm_is_one_operator_and_its_gradient_one():
    x, weight = (torch.ones(s, device="jax", requires_grad=True) for s in ((2, 4), (4,)))
    with torch_jax.trace_ops() as trace:
        F.rms_norm(x, (4,), weight).sum().backward()
    norms = [call for call in str(trace).split() if call.startswith("aten.") and "norm" in call]
    assert [norm.partition(".default")[0] for norm in norms] == [
        "aten._fused_rms_norm",
        "aten._fused_rms_norm_backward",
    ]


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim):
    g = leaf(3, 1, 1) if dim == 0 else leaf(1, 1, 2)
    check(lambda v, g: torch._weight_norm(v, g, dim), leaf(3, 4, 2), g)


def test_local_response_norm():
    check(lambda x: F.local_response_norm(x, 3), leaf(2, 5, 4, 4))


def test_sums_of_channels_are_exact_to_the_last_digits():
    """There is no long row of additions."""
    sums = jax.jit(norm._sums, compiler_options=options.operator())
    x = np.random.default_rng(0).random((4, 24, 24, 3), np.float32) + 100
    found = np.asarray(sums(jnp.asarray(x)))
    np.testing.assert_allclose(found, x.sum((0, 1, 2), dtype=np.float64), rtol=5e-7)
    for shape in [(5, 3), (5, 2, 2, 3), (0, 9, 3), (5, 0, 3)]:
        x = np.ones(shape, np.float32)
        np.testing.assert_array_equal(sums(x), x.reshape(-1, 3).sum(0))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the compiler is the CPU's")
def test_programs_grow_with_the_number_of_norms_not_with_its_square():
    def largest_fusion(layers):
        def run(x, weights):
            for weight in weights:
                x = norm.native_layer_norm(x + x @ weight, (64,), weight[0], weight[1], 1e-5)[0]
            return x.sum()

        given = jnp.ones((8, 32, 64)), [jnp.ones((64, 64))] * layers
        lowered = jax.jit(jax.grad(run, (0, 1))).lower(*given)
        parts = lowered.compile(options.whole()).as_text().split("\n\n")
        return max(part.count("\n") for part in parts if part.startswith("%fused"))

    assert largest_fusion(4) == largest_fusion(2)
