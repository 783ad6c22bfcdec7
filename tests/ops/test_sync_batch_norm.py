"""The parts of ``nn.SyncBatchNorm`` against batch norm of the whole batch, on the CPU.

PyTorch has no kernels of these parts on the CPU; two processes are in tests/distributed.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

DTYPES = {torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 3e-2}


def _numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4), (6, 3, 2, 5)])
def test_parts_of_two_sizes_are_batch_norm_of_the_whole(dtype, shape):
    x, grad = _numbers(*shape, dtype=dtype) * 2 + 3, _numbers(*shape, dtype=dtype)
    weight, bias = torch.tensor([1.5, -2.0, 0.5]), torch.tensor([0.1, 0.2, -0.3])
    stats = torch.zeros(3), torch.ones(3)
    if dtype == torch.float64:
        weight, bias, stats = weight.double(), bias.double(), (stats[0].double(), stats[1].double())
    expected = _whole(x, weight, bias, stats, grad)
    actual = _in_parts(x, weight, bias, stats, grad)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        tolerance = DTYPES[dtype] * (4 if ours.dim() == 1 else 1)  # sums of a channel
        torch.testing.assert_close(ours.cpu(), theirs, rtol=tolerance, atol=tolerance)


def _whole(x, weight, bias, stats, grad):
    leaves = [value.clone().requires_grad_() for value in (x, weight, bias)]
    mean, var = stats[0].clone(), stats[1].clone()
    out = F.batch_norm(leaves[0], mean, var, *leaves[1:], training=True, momentum=0.2, eps=1e-4)
    out.backward(grad)
    return [out.detach(), mean, var, *(leaf.grad for leaf in leaves)]


def _in_parts(x, weight, bias, stats, grad):
    x, weight, bias, mean, var, grad = (
        value.clone().to("jax") for value in (x, weight, bias, *stats, grad)
    )
    cut = [4, 2]
    parts, grads = x.split(cut), grad.split(cut)
    moments = [torch.batch_norm_stats(part, 1e-4) for part in parts]
    means, deviations = (torch.stack(values) for values in zip(*moments, strict=True))
    counts = torch.tensor([part[:, 0].numel() for part in parts], dtype=mean.dtype, device="jax")
    center, deviation = torch.batch_norm_gather_stats_with_counts(
        x, means, deviations, mean, var, 0.2, 1e-4, counts
    )
    out = [torch.batch_norm_elemt(p, weight, bias, center, deviation, 1e-4) for p in parts]
    reduced = [
        torch.batch_norm_backward_reduce(g, p, center, deviation, weight, True, True, True)
        for g, p in zip(grads, parts, strict=True)
    ]
    sums, products, of_weight, of_bias = (sum(values) for values in zip(*reduced, strict=True))
    of_input = [
        torch.batch_norm_backward_elemt(
            g, p, center, deviation, weight, sums, products, counts.to(torch.int32)
        )
        for g, p in zip(grads, parts, strict=True)
    ]
    return [torch.cat(out), mean, var, torch.cat(of_input), of_weight, of_bias]


def test_parts_of_one_size_and_what_is_not_asked_for():
    x = _numbers(4, 3, 2, dtype=torch.float32).to("jax")
    moments = [torch.batch_norm_stats(part, 1e-5) for part in x.split(2)]
    means, deviations = (torch.stack(values) for values in zip(*moments, strict=True))
    mean, deviation = torch.batch_norm_gather_stats(x, means, deviations, None, None, 0.1, 1e-5, 4)
    whole = torch.batch_norm_stats(x, 1e-5)
    torch.testing.assert_close((mean.cpu(), deviation.cpu()), (whole[0].cpu(), whole[1].cpu()))
    found = torch.batch_norm_backward_reduce(x, x, mean, deviation, None, False, True, False)
    assert [value.numel() for value in found] == [0, 0, 3, 0]
