"""Attention blocks and encoder layers in evaluation, each one operator."""

import pytest
import torch
from torch import nn

from tests.compare import check, check_raises, to_jax

BATCH, LENGTH, FEATURES, HEADS = 2, 3, 4, 2
KEYS = torch.tensor([[False, False, True], [True, True, True]])  # all of the second are masked
PAIRS = torch.eye(LENGTH).bool()


def drawn(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]


def block():
    """Weights and biases of the projections to queries, keys and values, and of the last one."""
    return drawn((3 * FEATURES, FEATURES), 3 * FEATURES, (FEATURES, FEATURES), FEATURES)


def attend(x, parameters, *rest):
    return torch._native_multi_head_attention(x, x, x, FEATURES, HEADS, *parameters, *rest)


@pytest.mark.parametrize(
    "mask, kind",
    [
        (None, None),
        (KEYS, 1),
        (KEYS.float(), 1),
        (PAIRS, 0),
        (PAIRS.expand(BATCH, HEADS, LENGTH, LENGTH), 2),
        (PAIRS.expand(BATCH, HEADS, LENGTH, LENGTH), None),
    ],
)
@pytest.mark.parametrize("weights, average", [(False, True), (True, True), (True, False)])
def test_attention(mask, kind, weights, average):
    (x,) = drawn((BATCH, LENGTH, FEATURES))
    check(attend, x, block(), mask, weights, average, kind)


def test_attention_of_nothing():
    check(attend, torch.zeros(0, LENGTH, FEATURES), block())


@pytest.mark.parametrize(
    "shape, mask, kind",
    [
        ((LENGTH, FEATURES), None, None),
        ((BATCH, LENGTH, FEATURES + 1), None, None),
        ((BATCH, LENGTH, FEATURES), KEYS, None),
        ((BATCH, LENGTH, FEATURES), KEYS, 0),
        ((BATCH, LENGTH, FEATURES), PAIRS, 1),
        ((BATCH, LENGTH, FEATURES), PAIRS, 2),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape, mask, kind):
    check_raises(attend, torch.zeros(shape), block(), mask, True, True, kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_layer(dtype, activation, norm_first):
    options = {"activation": activation, "norm_first": norm_first, "batch_first": True}
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(FEATURES, HEADS, 8, dtype=dtype, **options).eval()
    given = drawn((BATCH, LENGTH, FEATURES), dtype=dtype)
    given.append(given[0].transpose(0, 1).contiguous().transpose(0, 1))
    with torch.no_grad():
        expected = [layer(x) for x in given]
        layer.to("jax")
        for x, wanted in zip(to_jax(given), expected, strict=True):
            found = layer(x)
            rough = {"rtol": 3e-2, "atol": 3e-2} if dtype == torch.bfloat16 else {}
            torch.testing.assert_close(found.cpu(), wanted, **rough)
            assert found.stride() == wanted.stride()


def test_encoder_with_padding():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(FEATURES, HEADS, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    (x,) = drawn((BATCH, LENGTH, FEATURES))
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        found = encoder.to("jax")(x.to("jax"), src_key_padding_mask=padding.to("jax"))
    torch.testing.assert_close(found.cpu()[~padding], expected[~padding])
