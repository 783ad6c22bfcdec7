"""Attention as a function of PyTorch: second derivatives, vmap, masks of classes, executors."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from tests.support.defined import attention as defined
from tests.support.executors import EXECUTORS


def randn(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def leaves(*shapes):
    return [randn(*s, seed=i).to("jax").requires_grad_() for i, s in enumerate(shapes)]


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, "causal", "bool", "numbers"])
def test_first_and_second_derivatives(mask):
    q, k, v = leaves((1, 2, 3, 2), (1, 1, 3, 2), (1, 1, 3, 3))
    given = None
    if mask == "bool":
        given = torch.ones(3, 3, dtype=torch.bool).tril(-1).to("jax")  # the first row sees nothing
    elif mask == "numbers":
        given = randn(1, 2, 1, 3).to("jax")

    def attend(q, k, v):
        options = {"is_causal": mask == "causal", "enable_gqa": True}
        return F.scaled_dot_product_attention(q, k, v, given, **options)

    assert torch.autograd.gradcheck(attend, (q, k, v), fast_mode=True)
    assert torch.autograd.gradgradcheck(attend, (q, k, v), fast_mode=True)


@pytest.mark.slow
def test_no_second_derivative_of_dropout():
    q, k, v = leaves(*[(1, 2, 5, 4)] * 3)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
    grads = torch.autograd.grad(out.sum(), (q, k), create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(grads[0].sum(), q)


@pytest.mark.slow
def test_vmap_of_gradients_and_hessians():
    def loss(x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True).square().sum()

    def by_definition(x):
        return defined(x, x, x, is_causal=True).square().sum()

    x = randn(2, 1, 2, 3, 2)
    grads = torch.vmap(torch.func.grad(loss))(x.to("jax"))
    torch.testing.assert_close(grads.cpu(), torch.vmap(torch.func.grad(by_definition))(x))
    hessian = torch.func.hessian(loss)(x[0].to("jax"))
    torch.testing.assert_close(hessian.cpu(), torch.func.hessian(by_definition)(x[0]))


def test_a_causal_mask_that_ends_at_the_last_key():
    q, k, v = randn(1, 2, 3, 4), randn(1, 2, 5, 4), randn(1, 2, 5, 4)
    mask = causal_lower_right(3, 5)
    expected = defined(q, k, v, torch.ones(3, 5, dtype=torch.bool).tril(2))
    actual = F.scaled_dot_product_attention(*(t.to("jax") for t in (q, k, v)), attn_mask=mask)
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "executor", ["eager", "lazy", "jit", pytest.param("graph", marks=pytest.mark.slow)]
)
def test_blocks_in_every_executor(executor):
    """Long enough for groups of blocks, with heads that share keys."""

    def step(q, k, v, mask):
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        masked = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        return causal, masked

    q, k, v = (randn(1, h, 150, 4, seed=h).requires_grad_() for h in (4, 2, 1))
    v = randn(1, 2, 150, 3).requires_grad_()
    mask = torch.rand(150, 150, generator=torch.Generator().manual_seed(0)) > 0.3
    expected = (
        defined(q, k, v, None, is_causal=True, enable_gqa=True),
        defined(q, k, v, mask, enable_gqa=True),
    )
    given = [t.detach().to("jax").requires_grad_() for t in (q, k, v)]
    actual = EXECUTORS[executor](step)(*given, mask.to("jax"))
    grads = torch.autograd.grad(sum(x.square().sum() for x in actual), given)
    sums = torch.autograd.grad(sum(x.square().sum() for x in expected), (q, k, v))
    for one, other in zip((*actual, *grads), (*expected, *sums), strict=True):
        torch.testing.assert_close(one.detach().cpu(), other.detach())
