"""Exported models whose sizes may change: operators, arithmetic of sizes, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import torch_jax
from tests.support.models import Function
from torch_jax.core.tracers import NotTraceableError
from torch_jax.exporting import export
from torch_jax.ops.registry import TABLE

BATCH, LENGTH = torch.export.Dim("batch", max=64), torch.export.Dim("length", min=6, max=64)


def assert_same(function, given, *others, where=(0, 1)) -> None:
    """One program, exported with these, computes what the CPU does for the others too."""
    model = function if isinstance(function, nn.Module) else Function(function)
    shapes = ({dim: (BATCH, LENGTH)[i] for i, dim in enumerate(where)},)
    exported = torch_jax.export(model.eval(), (given,), dynamic_shapes=shapes)
    for x in (given, *others):
        with torch.no_grad():
            expected = pytree.tree_leaves(model(x))
        found = pytree.tree_leaves(exported.call(x))
        for result, wanted in zip(found, expected, strict=True):
            if not isinstance(wanted, torch.Tensor):
                result, wanted = result.item(), float(wanted)
            torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)


def written(x):
    """Writes to parts of a tensor."""
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
    y[:, -1] += 2
    y[:, ::2] *= 3
    y.diagonal(1, 2, 1).add_(4)
    return y


def scattered(x):
    """Writes by index."""
    places = torch.arange(x.shape[1])[None, :, None].expand(x.shape[0], -1, 4) % 3
    zeros = x.new_zeros(x.shape[0], 3, 4)
    reduced = torch.zeros_like(x).scatter_reduce(1, (x > 0).long(), x, "amax")
    top = torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0)
    return zeros.scatter_add(1, places, x), reduced, top


def turned(x):
    """Rotary embedding, in complex numbers."""
    angles = torch.outer(torch.arange(x.shape[1]).float(), torch.tensor([1.0, 0.1]))
    pairs = torch.view_as_complex(x.view(x.shape[0], x.shape[1], 2, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(2)


FUNCTIONS = {
    "writes": written,
    "scatter": scattered,
    "complex": turned,
    "bits": lambda x: x.view(torch.int32),
    "windows": lambda x: (x.unfold(1, 3, 2), x.unfold(-1, 2, 1)),
    "ranges": lambda x: (
        torch.arange(0, x.shape[0] * x.shape[1], x.shape[1]), torch.arange(x.shape[1] - 1, -1, -2),
        torch.arange(0.0, x.shape[1]), torch.arange(1, x.shape[1] + 1, dtype=torch.float16),
    ),
    "numbers": lambda x: (
        x / x.shape[1] ** 0.5, x * (x.shape[1] * 0.5), x.clamp(min=1 / x.shape[1]),
        x * torch.sym_sqrt(x.shape[1]), torch.zeros(math.ceil(x.shape[1] / 2)), x.shape[1] * 0.25,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_sequences(name):
    torch.manual_seed(0)
    assert_same(FUNCTIONS[name], *(torch.randn(b, t, 4) for b, t in ((3, 10), (2, 7), (1, 16))))


IMAGES = {
    "max_pool": nn.MaxPool2d(3, 2, 1),
    "avg_pool": nn.Sequential(nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(2, 1)),
    "avg_pool of the input only": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "adaptive": nn.Sequential(nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(1)),
    "nearest": lambda x: F.interpolate(x, scale_factor=1.5),
    "linear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    "halved": lambda x: F.interpolate(x, scale_factor=0.5),
    "recomputed": lambda x: F.interpolate(
        x, scale_factor=0.75, mode="bilinear", recompute_scale_factor=True
    ),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.slow
def test_of_images(name):
    torch.manual_seed(0)
    images = [torch.randn(2, 3, size, 8) for size in (10, 7, 16)]
    assert_same(IMAGES[name], *images, where=(0, 2))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_of_bags(mode):
    given = [torch.randint(0, 9, size) for size in ((3, 8), (1, 6), (5, 9))]
    assert_same(nn.EmbeddingBag(9, 4, mode=mode), *given)


@pytest.mark.slow
def test_sizes_that_a_float_may_miss_are_refused():
    x = torch.randn(2, 3, 10)
    with pytest.raises(NotTraceableError, match=r"use integers, as in size \* 7 // 10"):
        torch_jax.export(
            Function(lambda x: F.interpolate(x, scale_factor=0.7)), (x,),
            dynamic_shapes=({2: LENGTH},),
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 3])
def test_a_decomposition_that_fixes_a_size_is_refused(monkeypatch, dim):
    torch_jax.export(nn.Identity(), (torch.ones(1),))  # the table is there
    monkeypatch.delitem(TABLE, "_adaptive_avg_pool2d")
    with pytest.raises(NotTraceableError, match="decomposes an operator of this program for"):
        torch_jax.export(
            nn.AdaptiveAvgPool2d((5, 1)), (torch.randn(2, 3, 10, 12),),
            dynamic_shapes=({dim: LENGTH},),
        )  # fmt: skip


@pytest.mark.slow
def test_a_file_with_arithmetic_of_sizes():
    upsample = nn.Upsample(scale_factor=1.5)
    exported = torch_jax.export(upsample, (torch.ones(1, 2, 8),), dynamic_shapes=({2: LENGTH},))
    x = torch.randn(1, 2, 11)
    torch.testing.assert_close(export.load(exported.serialize()).call(x), upsample(x))
