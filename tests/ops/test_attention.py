"""Attention and dropout."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_jax
from tests.support.compare import check, check_raises
from tests.support.values import randn

fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable


def attention(query, key, value, mask=None, is_causal=False, scale=None):
    """The fused operator on jax, its mathematics on the CPU."""
    if query.device.type == "jax":
        return fused(query, key, value, mask, 0.0, is_causal, scale=scale)[0]
    math = torch.ops.aten._scaled_dot_product_attention_math
    gqa = query.shape[-3] != key.shape[-3]
    return math(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=gqa)[0]


def leaf(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention(dtype, is_causal):
    q, k, v = leaf(2, 3, 5, 8, dtype=dtype), leaf(2, 3, 7, 8, dtype=dtype), leaf(2, 3, 7, 4)
    v = v.detach().to(dtype).requires_grad_(True)
    # PyTorch's gradient rounds the probabilities of half types, and so do we, elsewhere
    scale = 4 if dtype == torch.bfloat16 else 1
    check(lambda *x: attention(*x, is_causal=is_causal), q, k, v, strides=False, scale=scale)


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (1, 3, 1, 7)])
def test_additive_mask(shape):
    mask = leaf(*shape).detach()
    mask[..., 0, :] = -torch.inf  # nothing to attend to
    mask.requires_grad_(True)
    q, k, v = leaf(2, 3, 5, 8), leaf(2, 3, 7, 8), leaf(2, 3, 7, 8)
    check(attention, q, k, v, mask, strides=False)


def test_scale_and_fewer_key_heads():
    q, k, v = leaf(2, 4, 5, 8), leaf(2, 2, 5, 8), leaf(2, 2, 5, 8) + 1
    check(lambda *x: attention(*x, scale=0.3), q, k, v.detach(), strides=False)


def test_three_dimensions():
    check(attention, leaf(3, 5, 8), leaf(3, 6, 8), leaf(3, 6, 8), strides=False)


@pytest.mark.slow
def test_dropout_gradient_uses_the_same_mask():
    torch.manual_seed(0)
    eye = torch.eye(6).expand(1, 2, 6, 6).to("jax")
    q = torch.zeros(1, 2, 4, 6, device="jax")
    v = eye.clone().requires_grad_(True)
    weights = fused(q, eye, v, None, 0.5)[0]  # 0 or 2/6, as each key is dropped or kept
    assert set(weights.detach().cpu().unique().mul(3).round().tolist()) == {0.0, 1.0}
    (grad,) = torch.autograd.grad(weights.sum(), v)
    torch.testing.assert_close(grad.cpu()[..., 0], weights.detach().cpu().sum(-2))


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_recorded_attention_draws_as_eagerly(dropout_p):
    """It draws random numbers with dropout alone."""

    def function(q):
        torch.manual_seed(0)
        out = F.scaled_dot_product_attention(q, q, q, dropout_p=dropout_p)
        return out, torch.rand(2, device="jax")

    q = leaf(1, 2, 4, 8).detach().to("jax").requires_grad_()
    expected, recorded = function(q), torch_jax.jit(function)
    for actual in [recorded(q) for _ in range(4)]:
        torch.testing.assert_close(actual, expected)


@pytest.mark.slow
def test_public_function_and_module():
    check(F.scaled_dot_product_attention, *(leaf(2, 3, 5, 8) for _ in range(3)), strides=False)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 8)
    for train in (True, False):
        expected = layer.cpu().train(train)(x).detach()
        actual = layer.to("jax")(x.to("jax")).detach().cpu()
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


BATCHES = [(), (2,), (1, 2), (2, 2), (2, 1, 2)]  # of the query; keys may have a batch of one


@st.composite
def attentions(draw):
    """Arguments of any number of dims, with a mask of any kind that broadcasts, or none."""
    batch = draw(st.sampled_from(BATCHES))
    of_keys = draw(st.sampled_from([batch, (*(1 for _ in batch[:1]), *batch[1:])]))
    shape = (*batch, 4, 5)
    mask = None
    if kind := draw(st.sampled_from([None, "bool", "bool", "additive"])):
        first = draw(st.integers(0, len(shape) - 2))
        sizes = [draw(st.sampled_from([1, n])) for n in shape[first:]]
        seed = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        mask = torch.randn(sizes, generator=seed)
        mask = mask > -0.5 if kind == "bool" else mask
        if kind == "bool" and draw(st.booleans()):
            mask[..., 0, :] = False  # nothing to attend to
    q, k, v = leaf(*batch, 4, 8), leaf(*of_keys, 5, 8), leaf(*of_keys, 5, 8)
    causal = mask is None and draw(st.booleans())
    return (q, k, v, mask, 0.0, causal), draw(st.booleans())


@pytest.mark.slow
@given(attentions())
@settings(max_examples=60, deadline=None)
def test_every_way_to_ask_for_attention_gives_the_same(arguments):
    """Fused or not, with or without gradients, in any number of dims."""
    args, math = arguments
    with sdpa_kernel([SDPBackend.MATH] if math else list(SDPBackend.__members__.values())):
        check(F.scaled_dot_product_attention, *args, strides=False)


@pytest.mark.parametrize("dims", [(), (2,), (1, 2), (2, 1, 2)])
def test_what_attention_refuses(dims):
    q, k, v = (leaf(*dims, n, 8).detach() for n in (4, 5, 5))
    for dtype in (torch.int32, torch.float64):
        check_raises(F.scaled_dot_product_attention, q, k, v, torch.ones(4, 5, dtype=dtype))
    check_raises(F.scaled_dot_product_attention, q, k.double(), v)
    check_raises(F.scaled_dot_product_attention, q[..., 0, 0], k[..., 0, 0], v)


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_dropout(p):
    torch.manual_seed(0)
    x = torch.ones(100, 100, device="jax", requires_grad=True)
    y = F.dropout(x, p)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad.cpu(), y.detach().cpu())
    assert abs(float((y.cpu() == 0).float().mean()) - p) < 0.02
    assert torch.equal(F.dropout(x, p, training=False).cpu(), x.cpu())


@pytest.mark.parametrize("function", [F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout])
@pytest.mark.slow
def test_other_dropouts(function):
    x = randn(64, 32, 4, 4)
    torch.manual_seed(0)
    first, second = function(x, 0.5, training=True), function(x, 0.5, training=True)
    assert not torch.equal(first.cpu(), second.cpu())
    torch.manual_seed(0)
    assert torch.equal(function(x, 0.5, training=True).cpu(), first.cpu())
