"""Pallas kernels as operators, and the kernels of examples/pallas against their definitions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional as F

import torch_jax
from examples.pallas.flash_attention import attention
from examples.pallas.rms_norm import RMSNorm, rms_norm
from tests.support import executors
from tests.support.compare import assert_same


def _thirds(arguments, results, gradient, *, power):
    (x,) = arguments
    return (gradient * power * x ** (power - 1),)


@torch_jax.pallas_op(out_shape=lambda x, power: x, backward=_thirds)
def to_power(x_ref, o_ref, *, power):
    o_ref[...] = x_ref[...] ** power


@torch_jax.pallas_op(
    out_shape=lambda x: (x, jax.ShapeDtypeStruct(x.shape, jnp.int32)), interpret=True
)
def twice_and_sign(x_ref, o_ref, sign_ref):
    o_ref[...] = x_ref[...] * 2
    sign_ref[...] = jnp.sign(x_ref[...]).astype(jnp.int32)


def _both(own, torchs, *tensors):
    """Values and gradients of both, with the same gradients of the results."""
    found = []
    for function, device in ((own, "jax"), (torchs, "cpu")):
        given = [t.detach().to(device).requires_grad_() for t in tensors]
        result = function(*given)
        result.backward(torch.linspace(-1, 1, result.numel()).view(result.shape).to(result))
        found.append([result, *(t.grad for t in given)])
    assert_same(*found, strides=False, scale=5)


@executors.each
def test_a_kernel_by_each_executor(executor):
    def step(x):
        found = to_power(x, power=3)
        found.sum().backward()
        return found.detach()

    x = torch.arange(1.0, 4).to("jax").requires_grad_()
    assert executors.by(executor, step)(x).tolist() == [1, 8, 27]
    assert x.grad.tolist() == [3, 12, 27]


def test_vmap_and_second_derivatives():
    x = torch.arange(1.0, 7).view(2, 3)
    own = torch.func.vmap(torch.func.grad(lambda x: to_power(x, power=3).sum()))
    assert_same(own(x.to("jax")), 3 * x**2)
    hessian = torch.func.hessian(lambda x: (x**3).sum())
    y = x[0].double().to("jax").requires_grad_()
    (gradient,) = torch.autograd.grad(to_power(y, power=3).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), y)
    assert_same(second, hessian(x[0].double()).sum(0))


def test_a_kernel_without_a_backward_pass():
    x = torch.tensor([-1.0, 2.0]).to("jax").requires_grad_()
    doubled, sign = twice_and_sign(x)
    assert (doubled.tolist(), sign.tolist(), sign.dtype) == ([-2, 4], [-1, 1], torch.int32)
    with pytest.raises(NotImplementedError, match="twice_and_sign has no backward pass: give one"):
        doubled.sum().backward()


@pytest.mark.slow
def test_a_backward_pass_that_gives_too_little():
    @torch_jax.pallas_op(out_shape=lambda x, y: x, backward=lambda *_: ())
    def add(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    x = torch.ones(2, device="jax", requires_grad=True)
    with pytest.raises(TypeError, match="add gave 0 gradients for 2 arguments"):
        add(x, x).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rms_norm(dtype):
    x = torch.linspace(-2, 2, 2 * 8 * 6, dtype=dtype).view(2, 8, 6)
    scale = torch.linspace(0.5, 1, 6, dtype=dtype)
    _both(rms_norm, lambda x, scale: F.rms_norm(x, (6,), scale, 1e-6), x, scale)
    with pytest.raises(ValueError, match="3 rows are no multiple of 8"):
        rms_norm(torch.ones(3, 6, device="jax"), torch.ones(6, device="jax"))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention(causal):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 32, 8).unbind()
    _both(
        lambda q, k, v: attention(q, k, v, causal=causal),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        *(q, k, v),
    )


def test_a_module_of_kernels_trains_under_jit():
    def losses(device, norm):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), norm).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.linspace(-1, 1, 32).view(8, 4).to(device)

        def step(x):
            optimizer.zero_grad()
            loss = ((model(x) - 1) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = torch_jax.jit(step) if device == "jax" else step
        return [step(x).item() for _ in range(3)]

    expected = losses("cpu", torch.nn.RMSNorm(6, eps=1e-6))
    assert losses("jax", RMSNorm(6)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_example_learns():
    from examples.pallas.__main__ import train

    losses = train()
    assert losses[-1] < losses[0] / 2
