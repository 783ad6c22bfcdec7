"""The form of attention that is chosen, and the right result of each."""

import math
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_jax.core.x64 import x64
from torch_jax.ops import attention, attention_forms, attention_kernels
from torch_jax.ops.attention_forms import Call, choose, groups

SHAPE = (2, 8, 1024, 128)
GPU = Call("gpu", "bfloat16", SHAPE, SHAPE, SHAPE, capability=(8, 0), cudnn=91000)
TPU = Call("tpu", "bfloat16", SHAPE, SHAPE, SHAPE)


def of_width(width, **changes):
    shape = (*SHAPE[:-1], width)
    return {"query": shape, "key": shape, "value": shape} | changes


@pytest.mark.parametrize(
    ("call", "changes", "form"),
    [
        (GPU, {}, "cudnn"),
        (GPU, {"is_causal": True}, "cudnn"),
        (GPU, {"dtype": "float16"}, "cudnn"),
        (GPU, {"bias": (1, 1, 1024, 1024)}, "cudnn"),
        (GPU, {"key": (2, 2, 512, 128), "value": (2, 2, 512, 128)}, "cudnn"),
        (GPU, of_width(256, capability=(9, 0)), "cudnn"),
        (GPU, of_width(256), "blocks"),
        (GPU, of_width(60), "blocks"),
        (GPU, {"dtype": "float32", "precision": "medium"}, "blocks"),
        (GPU, {"dropout": 0.1}, "blocks"),
        (GPU, {"capability": (7, 5)}, "blocks"),
        (GPU, {"cudnn": 0}, "blocks"),
        (GPU, {"value": (2, 8, 1024, 64)}, "blocks"),
        (GPU, {"bias": (1, 1, 1024, 1024), "is_causal": True}, "blocks"),
        (GPU, {"bias": (1, 1, 1024, 1), "key": (2, 8, 7, 128), "value": (2, 8, 7, 128)}, "blocks"),
        (GPU, {"key": (2, 8, 512, 128), "value": (2, 8, 512, 128), "is_causal": True}, "blocks"),
        (GPU, {"query": (2, 8, 1, 128)}, "blocks"),
        (TPU, {}, "splash"),
        (TPU, {"is_causal": True}, "splash"),
        (TPU, {"key": (2, 2, 512, 128), "value": (2, 2, 512, 128)}, "splash"),
        (TPU, {"dtype": "float32", "precision": "medium"}, "splash"),
        (TPU, {"dtype": "float32", "precision": "high"}, "blocks"),
        (TPU, {"dtype": "float64"}, "blocks"),
        (TPU, {"devices": 4}, "blocks"),
        (TPU, {"bias": (1, 1, 1024, 1024)}, "blocks"),
        (TPU, {"dropout": 0.1}, "blocks"),
        (TPU, of_width(64), "blocks"),
        (TPU, {"query": (2, 8, 1000, 128)}, "blocks"),
        (GPU, {"platform": "cpu"}, "blocks"),
    ],
)
def test_the_form_of_a_call(call, changes, form):
    assert choose(call._replace(**changes)) == form


@given(
    rows=st.integers(0, 5000),
    keys=st.integers(0, 5000),
    heads=st.integers(1, 1000),
    is_causal=st.booleans(),
    sizes=st.sampled_from(list(attention_forms.SIZES.values())),
)
@settings(max_examples=100, deadline=None)
def test_blocks_hold_each_row_once_and_all_keys_that_it_sees(rows, keys, heads, is_causal, sizes):
    seen = 0
    found = groups((heads, rows, 8), keys, is_causal, sizes)
    for group in found:
        assert group.start == seen and (group.stop - group.start) % max(group.block, 1) == 0
        assert group.keys == keys or (is_causal and group.keys == min(keys, group.stop))
        if rows * keys * heads > sizes.whole * 16:  # no block makes most of the scores
            assert group.block * group.keys * heads <= max(sizes.most, 16 * keys * heads)
        seen = group.stop
    assert seen == rows
    assert len(found) <= attention_forms.GROUPS_OF_BLOCKS + 2


# --- what attention is defined to be --------------------------------------------------------------


def definition(query, key, value, bias, is_causal, scale):
    """Attention in float64 by NumPy, and the weights; a row that sees nothing gives zeros."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = np.einsum("bhqd,bhkd->bhqk", query, key) * scale
    if bias is not None and bias.dtype == bool:
        scores = np.where(bias, scores, -np.inf)
    elif bias is not None:
        scores = scores + np.asarray(bias, np.float64)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    largest = np.max(scores, -1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(largest), 0, largest))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    return weights @ value, weights


def defined_gradients(query, key, value, bias, is_causal, scale, grad):
    """Of query, key, value and bias: the sums that the chain rule gives."""
    heads, served = query.shape[1], key.shape[1]
    _, weights = definition(query, key, value, bias, is_causal, scale)
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    keys, values = (np.repeat(x, heads // served, 1) for x in (key, value))
    of_weights = grad @ values.swapaxes(-1, -2)
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdims=True))
    of_key = of_scores.swapaxes(-1, -2) @ query * scale
    of_value = weights.swapaxes(-1, -2) @ grad

    def gathered(x):
        return x.reshape(x.shape[0], served, -1, *x.shape[2:]).sum(2)

    of_bias = None
    if bias is not None and bias.dtype != bool:
        axes = tuple(d for d, n in enumerate(bias.shape) if n == 1)
        of_bias = of_scores.sum(axes, keepdims=True)
    return of_scores @ keys * scale, gathered(of_key), gathered(of_value), of_bias


def mask_of(random, kind, shape):
    if kind is None:
        return None
    name, sizes = kind
    sizes = tuple(n if full else 1 for n, full in zip(shape, sizes, strict=True))
    mask = random.randn(*sizes)
    if name == "bool":
        return mask > -0.5
    mask[..., :1, :] = -np.inf  # rows that see nothing
    return mask


MASKS = [None, ("bool", (0, 0, 1, 1)), ("bool", (1, 0, 0, 1))]
MASKS += [("numbers", (1, 1, 1, 1)), ("numbers", (0, 1, 0, 1)), ("numbers", (1, 0, 1, 0))]
SIZES = [(5, 7), (9, 4)]


def run(operands, bias, is_causal, scale, grad):
    """The operator and its gradient as one program; their results, and log-sum-exp."""
    with x64():  # as the device runs them
        return jax.jit(_both, static_argnums=(2, 3))(operands, bias, is_causal, scale, grad)


def _both(operands, bias, is_causal, scale, grad):
    of_bias = bias is not None and bias.dtype != bool
    key = jax.random.key(0)
    found = attention.attention(*operands, bias, 0.0, is_causal, scale=scale, prng=key)
    out, sums = found[:2]
    wanted = (True, True, True, of_bias)
    rest = None, None, 0, 0, 0.0, is_causal, None, None
    given = grad.astype(out.dtype), *operands, bias, wanted, out, sums
    return out, attention.attention_backward(*given, *rest, scale=scale), sums


@pytest.fixture
def small_blocks():
    """Blocks of two and three rows, in groups that are loops, for arrays that are small too."""
    small = attention_forms.SIZES["cpu"]._replace(rows=3, causal_rows=2, whole=0)
    sizes = dict.fromkeys(attention_forms.SIZES, small)
    with (
        mock.patch.dict(attention_forms.SIZES, sizes),
        mock.patch.object(attention_forms, "GROUPS_OF_BLOCKS", 2),
    ):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_blocks_give_what_attention_is_defined_to_be(mask, is_causal, small_blocks):
    """In float64, with all gradients: heads that share keys, and values of another width."""
    random = np.random.RandomState(0)
    for (rows, keys), served in zip(SIZES, (2, 1), strict=True):
        shapes = (2, 4, rows, 3), (2, served, keys, 3), (2, served, keys, 5)
        operands = [random.randn(*shape) for shape in shapes]
        bias, grad = mask_of(random, mask, (2, 4, rows, keys)), random.randn(2, 4, rows, 5)
        out, grads, _ = run(operands, bias, is_causal, 0.3, grad)
        expected, _ = definition(*operands, bias, is_causal, 0.3)
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
        defined = defined_gradients(*operands, bias, is_causal, 0.3, grad)
        for actual, sum_of_products in zip(grads, defined, strict=True):
            if sum_of_products is None:
                assert actual is None
            else:
                np.testing.assert_allclose(actual, sum_of_products, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("bfloat16", 3e-2)])
def test_blocks_of_float32_and_half(dtype, tolerance, small_blocks):
    random = np.random.RandomState(1)
    operands = [jnp.asarray(random.randn(1, 2, 8, 4), dtype) for _ in range(3)]
    grad = jnp.asarray(random.randn(1, 2, 8, 4), dtype)
    out, grads, sums = run(operands, None, True, 0.5, grad)
    exact = [np.asarray(x, np.float64) for x in operands]
    expected, _ = definition(*exact, None, True, 0.5)
    assert sums.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=tolerance)
    defined = defined_gradients(*exact, None, True, 0.5, np.asarray(grad, np.float64))
    for actual, sum_of_products in zip(grads[:3], defined[:3], strict=True):
        np.testing.assert_allclose(np.asarray(actual, np.float64), sum_of_products, atol=tolerance)


@pytest.mark.slow
def test_dropout_of_blocks_is_the_same_in_the_gradient(small_blocks):
    """Values are the identity, so that results are the weights that dropout has left."""
    query = jnp.zeros((1, 2, 7, 6))
    eye = jnp.broadcast_to(jnp.eye(6), (1, 2, 6, 6))
    with x64():
        found = jax.jit(partial(attention.attention, dropout_p=0.5))(
            query, eye, eye, prng=jax.random.key(3)
        )
    out, sums, seed = found[0], found[1], found[6]
    assert set(np.unique(np.round(out * 3))) == {0.0, 1.0}
    assert 0.3 < float((out == 0).mean()) < 0.7
    wanted = (False, False, True, False)
    rest = None, None, 0, 0, 0.5, False, seed, None
    with x64():
        given = jnp.ones_like(out), query, eye, eye, None, wanted, out, sums, *rest
        grads = attention.attention_backward(*given)
    np.testing.assert_allclose(grads[2][..., 0], out.sum(-2), rtol=1e-6)


# --- kernels of platforms -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, "bool", "numbers"])
def test_what_cudnn_is_asked(mask):
    """The same call by XLA, which runs here: heads, masks, and rows that see nothing."""
    random = np.random.RandomState(2)
    shapes = (2, 4, 6, 8), (2, 2, 8, 8), (2, 2, 8, 8)
    operands = [jnp.asarray(random.randn(*shape), jnp.float32) for shape in shapes]
    bias = None if mask is None else random.rand(2, 1, 6, 8) > 0.4
    if bias is not None:
        bias[:, :, 2] = False
        bias = bias if mask == "bool" else np.where(bias, 0.5, -np.inf)
    out, sums = jax.jit(partial(attention_kernels.cudnn, by="xla"), static_argnums=(4, 5))(
        *operands, bias, False, 0.3
    )
    expected, weights = definition(*operands, bias, False, 0.3)
    np.testing.assert_allclose(out, expected, atol=2e-6)
    if mask is not None:
        assert np.isneginf(sums[:, :, 2]).all() and not weights[:, :, 2].any()

    def by_xla(*call, **options):
        return attention_kernels.cudnn(*call, **options, by="xla")

    grad = random.randn(*expected.shape)
    grads = attention_kernels.gradients(by_xla, operands, bias, False, 0.3, jnp.asarray(grad))
    defined = defined_gradients(*operands, bias, False, 0.3, grad)
    for actual, sum_of_products in zip(grads, defined[:3], strict=True):
        np.testing.assert_allclose(actual, sum_of_products, atol=5e-6)


def test_a_program_for_gpus_calls_cudnn_and_the_same_for_cpus_does_not():
    module = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    machine = {"platform": "gpu", "devices": 1, "capability": (8, 0), "cudnn": 91000}
    shape = jax.ShapeDtypeStruct((2, 4, 64, 64), jnp.bfloat16)

    def attend(query, key, value):
        return attention.attention(query, key, value, None, 0.0, True, prng=jax.random.key(0))[:2]

    with (
        mock.patch.object(attention, "_machine", lambda: machine),
        mock.patch.object(module, "check_cudnn_version", lambda: 91000),
        mock.patch.object(module, "check_compute_capability", lambda capability: True),
        mock.patch.object(module, "is_cuda_compute_capability_equal", lambda capability: False),
        x64(),
    ):
        traced = jax.jit(attend).trace(shape, shape, shape)
        texts = [traced.lower(lowering_platforms=(p,)).as_text() for p in ("cuda", "cpu")]
    assert ["__cudnn$fmha" in text for text in texts] == [True, False]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.slow
def test_splash_attention_in_the_interpreter(is_causal):
    random = np.random.RandomState(3)
    shapes = (1, 2, 128, 128), (1, 1, 128, 128), (1, 1, 128, 128)
    operands = [jnp.asarray(random.randn(*shape), jnp.float32) for shape in shapes]
    grad = random.randn(1, 2, 128, 128)
    scale = 1 / math.sqrt(128)
    with mock.patch.object(attention_kernels, "_INTERPRETED", True), x64():
        out, sums = attention_kernels.splash(*operands, None, is_causal, scale)
        given = attention_kernels.splash, operands, None, is_causal, scale
        grads = attention_kernels.gradients(*given, jnp.asarray(grad, jnp.float32))
    expected, _ = definition(*operands, None, is_causal, scale)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    _, of_blocks, plain = run(operands, None, is_causal, scale, jnp.asarray(grad, jnp.float32))
    np.testing.assert_allclose(sums, plain.reshape(sums.shape), atol=1e-5)
    defined = defined_gradients(*operands, None, is_causal, scale, grad)
    for actual, blocks, sum_of_products in zip(grads, of_blocks[:3], defined[:3], strict=True):
        np.testing.assert_allclose(actual, sum_of_products, atol=2e-5)
        np.testing.assert_allclose(blocks, sum_of_products, atol=2e-5)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.xla_default
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_scores_of_long_sequences_are_never_kept(is_causal):
    """Of 8 heads and 4096 rows they would be 512 MiB; forward and backward take a fourth."""
    shape = jax.ShapeDtypeStruct((1, 8, 4096, 64), jnp.float32)

    def both(*operands):
        return _both(operands, None, is_causal, 0.125, operands[0])[:2]

    with x64():
        compiled = jax.jit(both).lower(shape, shape, shape).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 128 << 20


def test_odd_lengths_have_no_gradient_by_cudnn():
    shape = (8, 12, 197, 64)
    call = GPU._replace(query=shape, key=shape, value=shape)
    assert (choose(call), choose(call._replace(is_gradient=True))) == ("cudnn", "blocks")
    assert choose(GPU._replace(is_gradient=True)) == "cudnn"
