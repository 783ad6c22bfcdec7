"""Activations, softmax and their gradients against the CPU."""

import pytest
import torch
from torch.nn import functional as F

from tests.support.compare import check, check_raises
from tests.support.values import SPECIAL, make

ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "elu": F.elu,
    "elu_alpha": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.celu(x, 1.3),
    "selu": F.selu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 1.5),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2.0, 3.0),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "tanhshrink": F.tanhshrink,
    "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.3, 7),
    "softsign": F.softsign,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
activations = pytest.mark.parametrize("name", ACTIVATIONS)


@activations
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradients(name, dtype):
    if dtype == torch.float32:
        # PyTorch's vectorized gelu gives NaN for infinity; its float64 one and ours do not
        check(ACTIVATIONS[name], SPECIAL.double() if name == "gelu" else SPECIAL)
        check(ACTIVATIONS[name], torch.linspace(-6, 6, 25).requires_grad_())  # the corners
    check(ACTIVATIONS[name], make(dtype, 4, 5, grad=True))


@pytest.mark.slow
@activations
def test_layouts(name):
    for x in (make(torch.float32, 4, 5).t(), torch.empty(0, 2), torch.tensor(0.3)):
        check(ACTIVATIONS[name], x.requires_grad_())


@pytest.mark.parametrize("name", ["relu_", "elu_", "leaky_relu_", "hardtanh_", "threshold_"])
def test_in_place(name):
    more = (0.1, 2.0) if name == "threshold_" else ()
    check(lambda x: getattr(F, name)(x, *more), make(torch.float32, 4, 5))
    check(lambda x: getattr(F, name)(x * 2, *more), make(torch.float32, 4, 5, grad=True))
    for f in (F.silu, F.mish, F.hardswish):
        check(lambda x, f=f: f(x * 1, inplace=True), make(torch.float32, 3, grad=True))


@pytest.mark.parametrize("weight", [1, 3])
def test_prelu(weight):
    x, w = make(torch.float32, 2, 3, 4, grad=True), torch.rand(weight, requires_grad=True)
    check(F.prelu, x, w)
    check(F.prelu, x.detach().bfloat16().requires_grad_(), w.detach().bfloat16())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu(dim):
    check(lambda x: F.glu(x, dim), make(torch.float32, 4, 6, grad=True))
    check(lambda x: F.glu(x, dim), make(torch.bfloat16, 4, 6, grad=True))


@pytest.mark.slow
def test_second_derivatives():
    def twice(f):
        def run(x):
            (g,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
            return torch.autograd.grad(g.sum(), x)[0]

        return run

    for name in ("gelu", "silu", "tanh", "sigmoid", "softplus", "mish", "elu", "logsigmoid"):
        check(twice(ACTIVATIONS[name]), make(torch.float32, 7, grad=True), grad=False, scale=4)


@pytest.mark.parametrize("f", [F.softmax, F.log_softmax, F.softmin], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.slow
def test_softmax(f, dtype):
    x = make(dtype, 3, 4, 5, grad=True)
    for dim in (0, 1, -1):
        check(lambda x, dim=dim: f(x, dim), x)
    check(lambda x: f(x.t(), 0), make(dtype, 3, 4, grad=True))
    check(lambda x: f(x, 0), torch.tensor(0.5, dtype=dtype, requires_grad=True))
    check(lambda x: f(x, 1), torch.empty(2, 0, dtype=dtype))
    check(lambda x: f(x, 1, dtype=torch.float32), x.detach())
    check(lambda x: f(x, 0, dtype=torch.float32), torch.arange(4))


def test_softmax_of_infinities():
    x = torch.tensor([[0.0, -torch.inf, 1], [-torch.inf] * 3, [torch.inf, 0, 1]])
    check(lambda x: F.softmax(x, 1), x)
    check(lambda x: F.log_softmax(x, 1), x)
    check(lambda x: torch._safe_softmax(x, 1), x[:2].requires_grad_())


def test_masked_softmax():
    x, mask = make(torch.float32, 2, 3, 4, 4), make(torch.bool, 4, 4)
    mask[:, 0] = False
    check(lambda x, m: torch._masked_softmax(x, m, -1, 0), x, mask)
    check(lambda x, m: torch._masked_softmax(x, m, -1, 1), x, mask[:2])
    full = mask.expand(2, 3, 4, 4).clone()
    full[1, :, 2] = True  # nothing to see: NaN
    check_raises(lambda x, m: torch._masked_softmax(x, m, -1), x, mask)
    check(lambda x, m: torch._masked_softmax(x, m, -1, 2), x.requires_grad_(), full)


@pytest.mark.slow
def test_second_order_of_glu():
    from torch.func import hessian

    check(lambda x: hessian(lambda x: F.glu(x).square().sum())(x), make(torch.float32, 4))
