"""Fake quantization against the CPU's kernels."""

from functools import partial

import pytest
import torch

from tests.support.compare import check

aten = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(0)
X = 3 * torch.randn(4, 5, 3, generator=GENERATOR)
X[0, 0, 0] = torch.nan
SCALE = 0.05 + 0.1 * torch.rand(5, generator=GENERATOR)
WHOLE, POINT = torch.arange(0, 100, 20, dtype=torch.int32), 20 * torch.rand(5, generator=GENERATOR)
ONE = SCALE[:1], POINT[:1]
LEARNED = "_fake_quantize_learnable_per_{}_affine{}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_scale(dtype):
    x = X.to(dtype, copy=True).requires_grad_()
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 7, 0, 60), x)


@pytest.mark.parametrize("on", [True, False])
def test_one_scale_in_a_tensor(on):
    kernel = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    given = SCALE[0], WHOLE[1], torch.tensor([on]).long()
    check(lambda *given: kernel(*given, 0, 60), X, *given)


@pytest.mark.parametrize("point", [WHOLE, POINT], ids=["integers", "floats"])
def test_one_scale_a_channel(point):
    check(
        lambda *given: aten.fake_quantize_per_channel_affine_cachemask(*given, 1, 0, 99),
        X,
        SCALE,
        point,
    )


@pytest.mark.parametrize("numbers", [ONE, (SCALE, POINT)], ids=["tensor", "channel"])
def test_scales_that_are_learned(numbers):
    kind, axis = ("tensor", ()) if len(numbers[0]) == 1 else ("channel", (1,))
    forward, backward = (getattr(aten, LEARNED.format(kind, end)) for end in ("", "_backward"))
    limits = *axis, 0, 60, 0.5
    check(lambda *given: forward(*given, *limits), X, *numbers)
    check(lambda *given: backward(*given, *limits), X.nan_to_num().flip(0), X, *numbers)


@pytest.mark.parametrize("executor", ["jit", "graph"])
def test_a_model_that_is_trained_for_quantization(executor):
    run = partial(
        torch.fake_quantize_per_tensor_affine, scale=0.1, zero_point=3, quant_min=0, quant_max=60
    )
    check(run, X.clone().requires_grad_(), executor=executor)
