"""``torch.vmap`` of operators that PyTorch has no rule for, or whose rule is slow."""

import itertools
import warnings

import pytest
import torch
from torch import func
from torch.nn import functional as F

from tests.support.compare import assert_same, check, check_raises

LOOP = ".*performance drop"


@pytest.fixture(autouse=True)
def loops_on_the_cpu_only():
    """PyTorch's loop warns; on the device the warning is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=LOOP)
        yield


def make(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def on_device(function):
    """``function``, without loops where it is called with tensors of the device."""

    def call(*args):
        if args[0].device.type != "jax":
            return function(*args)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=LOOP)
            return function(*args)

    return call


def scatter_in_place(a):
    b = a.clone()
    b.masked_scatter_(a > 0, a)
    return b


def counts_in_place(a):
    b = a.clone()
    return b.eq_(1.0), a.clone().lerp_(a.cos(), 0.3), a.clone().addcmul_(a, a)


FUNCTIONS = {
    "of the table": torch.special.log_ndtr,
    "with numbers": lambda a: torch.renorm(a, 2.0, 0, 1.0),
    "of two results": lambda a: torch.aminmax(a, dim=1, keepdim=True),
    "in place": scatter_in_place,
    "in place, of one number": counts_in_place,
    "composed": lambda a: torch.quantile(a, 0.3, dim=-1),
    "composed of operators without rules": lambda a: F.kl_div(a, a.exp(), log_target=False),
    "by strides": lambda a: torch.ops.aten._native_batch_norm_legit_no_training(
        a, None, None, a[0], a[0].abs() + 1, 0.1, 1e-5
    )[0],
    "checked": lambda a: torch.take(a, (a[0].abs() * 2).long().clamp(max=7)),
    "attention": lambda a: F.scaled_dot_product_attention(*[a[None, None]] * 3, is_causal=True),
    "of bags": lambda a: F.embedding_bag(torch.tensor([[0, 1], [2, 0]], device=a.device), a),
    "of a cell": lambda a: torch.gru_cell(a, a, *[a[:1].repeat(12, 1)] * 2),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_batches_are_one_call(function):
    check(on_device(func.vmap(function)), make(3, 4, 4), strides=False)
    check(on_device(func.vmap(func.vmap(function, 2), 1)), make(4, 3, 4, 2), strides=False)


def test_lists_that_the_cpu_refuses():
    def function(a):
        torch._foreach_add_(b := [a.clone(), a.sum()], [a, a[0, 0]])
        return torch._foreach_mul(b, 2.0)

    x = make(3, 4, 4)
    expected = [torch.stack(results) for results in zip(*map(function, x), strict=True)]
    assert_same(on_device(func.vmap(function))(x.to("jax")), expected, strides=False)


DIFFERENTIABLE = {name: FUNCTIONS[name] for name in ("of the table", "with numbers", "attention")}


def total(function):
    return lambda *args: function(*args).square().sum()


ORDERS = {
    "gradients by example": lambda f: func.vmap(func.grad(total(f))),
    "gradient of all": lambda f: func.grad(total(func.vmap(f))),
    "in two levels": lambda f: func.vmap(func.grad(total(func.vmap(f))), in_dims=1),
    "tangents by example": lambda f: func.vmap(lambda a: func.jvp(f, (a,), (a,))[1]),
    "tangents of all": lambda f: lambda a: func.jvp(func.vmap(f), (a,), (a,))[1],
    "second derivatives": lambda f: func.grad(
        lambda a: func.vmap(func.grad(total(f)))(a).square().sum()
    ),
}


def by_hand(function):
    """Attention as PyTorch composes it, of which the CPU has all derivatives."""

    def call(*args):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return function(*args)

    return call


QUICK = {("of the table", order) for order in ORDERS} | {("attention", "gradient of all")}


@pytest.mark.parametrize(
    ("name", "order"),
    [
        pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow])
        for pair in itertools.product(DIFFERENTIABLE, ORDERS)
    ],
)
def test_derivatives_in_every_order(name, order):
    function = DIFFERENTIABLE[name]
    x = make(2, 3, 4, 4) if order == "in two levels" else make(3, 4, 4)
    wanted = ORDERS[order](by_hand(function) if name == "attention" else function)
    derived = ORDERS[order](function)
    if name == "attention" and order == "second derivatives":
        derived = wanted  # the fused operator has none, as the CPU's
    assert_same(on_device(derived)(x.to("jax")), wanted(x), strides=False, scale=5)


def test_autograd_around_a_batch():
    f = func.vmap(torch.special.log_ndtr)
    check(on_device(f), make(3, 4).requires_grad_(), strides=False)


def test_gradients_that_jax_does_not_have_are_pytorchs():
    def f(a):
        return torch.ormqr(a, a[0], a) * torch.special.hermite_polynomial_h(a, 2.0)

    check(func.grad(total(func.vmap(f))), make(3, 4, 4), strides=False, scale=5)


@pytest.mark.slow
def test_gradients_of_bags():
    f = FUNCTIONS["of bags"]
    check(on_device(func.vmap(func.grad(total(f)))), make(3, 4, 4), strides=False)
    check(on_device(func.grad(total(func.vmap(f)))), make(3, 4, 4), strides=False)


def test_one_batch_of_two_arguments():
    f = func.vmap(lambda a, b: torch.isin(a, b, invert=True), in_dims=(None, 1))
    check(on_device(f), make(4).round(), make(5, 3).round(), strides=False)


def test_no_examples():
    assert func.vmap(torch.special.log_ndtr)(torch.ones(0, 3, device="jax")).shape == (0, 3)


def test_errors_are_those_of_one_example():
    check_raises(func.vmap(lambda a: torch.renorm(a, 2.0, 9, 1.0)), make(3, 4, 4))
    check_raises(func.vmap(lambda a: torch.take(a, a.long() + 99)), make(3, 4).abs())
    check_raises(func.vmap(lambda a: a.long().lerp_(a, 0.5)), make(3, 4))
    check_raises(func.vmap(lambda a, b: a.addcmul_(b, b), (None, 0)), make(4), make(3, 4))
    check_raises(func.vmap(torch.nonzero), make(3, 4))
    check_raises(func.vmap(lambda a: torch.add(a, a, out=torch.empty_like(a))), make(3, 4))


def test_other_devices_go_pytorchs_way():
    func.vmap(torch.special.log_ndtr)(torch.ones(2, 3, device="jax"))  # rules are registered
    with pytest.warns(UserWarning, match=LOOP):
        found = func.vmap(torch.special.log_ndtr)(torch.zeros(2, 3))
    torch.testing.assert_close(found, torch.special.log_ndtr(torch.zeros(2, 3)))
    with pytest.raises(RuntimeError, match="dims of size 0|size 0"):
        func.vmap(torch.special.log_ndtr)(torch.zeros(0, 3))


CONVOLUTIONS = {
    "plain": {},
    "strided": {"stride": 2, "padding": 1},
    "in groups": {"groups": 2},
    "dilated": {"dilation": 2, "padding": 2},
}


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_gradients_of_convolutions_by_example(options):
    channels = 4 // options.get("groups", 1)

    def loss(w, x):
        return F.conv2d(x[None], w, **options).sin().sum()

    f = func.vmap(func.grad(loss, argnums=(0, 1)), in_dims=(None, 0))
    check(f, make(4, channels, 3, 3), make(3, 4, 7, 7), strides=False, scale=5)


@pytest.mark.slow
def test_forward_mode_of_what_pytorch_composes_with_writes():
    check(lambda x: func.jvp(lambda a: torch.quantile(a, 0.3), (x,), (x,)), make(5))


@pytest.mark.slow
def test_dropout_of_attention_asks_how_examples_draw():
    x = torch.ones(3, 1, 1, 8, 4, device="jax")

    def f(a):
        return F.scaled_dot_product_attention(a, a, a, dropout_p=0.5)

    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(f)(x)
    same = func.vmap(f, randomness="same")(x).cpu()
    different = func.vmap(f, randomness="different")(x).cpu()
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])
