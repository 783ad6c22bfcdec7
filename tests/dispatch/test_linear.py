"""A linear layer is one operator, and its gradient; what needs the parts gets them."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torch_jax
from torch_jax import config


def made(device, *shapes, dtype=torch.float64):
    """Tensors with gradients, of numbers that are the same on each device."""
    numbers = (torch.linspace(-1, 1, torch.Size(s).numel(), dtype=dtype) for s in shapes)
    return [
        (x + n / 7).sin().reshape(s).to(device).requires_grad_()
        for n, (x, s) in enumerate(zip(numbers, shapes, strict=True))
    ]


def second_gradients(device, *shapes, **options):
    given = made(device, *shapes, **options)
    loss = F.linear(*given).abs().pow(3).sum()
    grads = torch.autograd.grad(loss, given, create_graph=True)
    norm = sum(one.abs().pow(2).sum() for one in grads)
    return [*grads, *torch.autograd.grad(norm, given)]


def tangent(device):
    x, weight, bias = made(device, (2, 4), (5, 4), (5,))
    with forward_ad.dual_level():
        y = F.linear(forward_ad.make_dual(x, torch.ones_like(x)), weight, bias)
        return [forward_ad.unpack_dual(y).tangent]


def sparse_gradient(device):
    x, weight = made(device, (3, 4), (5, 4))
    weight = weight.detach().to_sparse().requires_grad_()
    F.linear(x, weight).square().sum().backward()
    return [x.grad, weight.grad.to_dense()]


def batched_gradients(device):
    x, weight = made(device, (2, 4), (3, 4))
    y = F.linear(x, weight)
    seeds = torch.eye(6, dtype=y.dtype, device=device).reshape(6, 2, 3)
    return torch.autograd.grad(y, (x, weight), seeds, is_grads_batched=True)


def first_layer_after_a_step(device):
    """A weight whose input has no gradient is not kept, so it may be written meanwhile."""
    x, weight = made(device, (2, 4), (3, 4))
    y = F.linear(x.detach(), weight).sum()
    with torch.no_grad():
        weight.mul_(2)
    return torch.autograd.grad(y, weight)


CASES = {
    "matrices": lambda device: second_gradients(device, (3, 4), (5, 4), (5,)),
    "many dims": lambda device: second_gradients(device, (2, 1, 3, 4), (5, 4)),
    "no rows": lambda device: second_gradients(device, (0, 4), (5, 4), (5,)),
    "a vector": lambda device: second_gradients(device, (4,), (5, 4), (5,)),
    "a weight of one dim": lambda device: second_gradients(device, (2, 3, 4), (4,)),
    "a bias of rows": lambda device: second_gradients(device, (3, 4), (5, 4), (3, 5)),
    "a scalar bias": lambda device: second_gradients(device, (2, 3, 4), (5, 4), ()),
    "complex": lambda device: second_gradients(device, (3, 4), (5, 4), dtype=torch.complex128),
    "a tangent": tangent,
    "a sparse weight": sparse_gradient,
    "batched": batched_gradients,
    "a step between": first_layer_after_a_step,
}


@pytest.mark.parametrize("way", ["torch", "xla"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_cpu(case, way):
    with config.temporarily("eager_on_cpu", way):
        actual = [one.detach().cpu() for one in CASES[case]("jax")]
    expected = [one.detach() for one in CASES[case]("cpu")]
    torch.testing.assert_close(actual, expected)
    assert [one.stride() for one in actual] == [one.stride() for one in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_and_its_gradient_are_one_operator_each(dtype):
    layer = nn.Linear(4, 3, device="jax", dtype=dtype)
    x = torch.ones(2, 5, 4, device="jax", dtype=dtype, requires_grad=True)
    with torch_jax.trace_ops() as trace:
        layer(x).sum().backward()
    products = [call for call in str(trace).split() if "linear" in call or "mm" in call]
    assert products == [f"torch.nn.functional.{products[0].rpartition('.')[2]}", *products[1:]]
    assert sum(call.startswith("aten.") for call in products) == 2
    assert x.grad.dtype is layer.weight.grad.dtype is layer.bias.grad.dtype is dtype


def test_without_gradients_the_layer_of_a_vector_is_one_operator():
    layer = nn.Linear(4, 3)
    x = torch.randn(4)
    expected = layer(x).detach()
    layer.to("jax")
    with torch.no_grad(), torch_jax.trace_ops() as trace:
        found = layer(x.to("jax"))
    assert "aten.linear.default" in str(trace) and "aten.mv" not in str(trace)
    torch.testing.assert_close(found.cpu(), expected)


def test_a_frozen_layer_keeps_no_input():
    weight, x = torch.ones(3, 4, device="jax"), torch.ones(2, 4, device="jax", requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        F.linear(x * 1, weight).sum().backward()
    assert torch.Size([2, 4]) not in kept


def test_a_users_mode_sees_the_parts():
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function._schema.name)
            return function(*args, **(kwargs or {}))

    x, weight, bias = made("jax", (2, 4), (3, 4), (3,))
    with Mode():
        F.linear(x, weight, bias).sum().backward()
    assert "aten::addmm" in seen and "aten::mm" in seen and "aten::linear" not in seen


@pytest.mark.usefixtures("eager_by_xla")
def test_a_bias_of_another_dtype_is_refused_as_on_the_cpu():
    for device in ("cpu", "jax"):
        x, weight = made(device, (2, 4), (3, 4))
        with pytest.raises(RuntimeError, match="self and mat2 must have the same dtype"):
            F.linear(x, weight, torch.ones(3, device=device))
