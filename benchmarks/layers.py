"""Layers one by one, forward and backward, under ``torch_jax.jit`` and eagerly beside PyTorch.

A model is as slow as its slowest layer: this finds the one. ``python -m benchmarks.layers conv``
times those with the word in their names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from benchmarks.timing import compare, sample, wait

ROUNDS, CALLS, SECONDS, SETTLING_SECONDS = 30, 1, 0.5, 1.0

Layer = Callable[[torch.Tensor], torch.Tensor]


def _multiples(x: torch.Tensor, count: int, size: int) -> torch.Tensor:
    """Return ``count`` indices below ``size``, each several times."""
    return torch.arange(count, device=x.device) * 7 % size


def _sampled(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape[2:]
    grid = torch.linspace(-1, 1, len(x) * rows * columns * 2, device=x.device).sin()
    return F.grid_sample(x, grid.view(len(x), rows, columns, 2), align_corners=False)


def _sums(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(100, x.shape[1]).index_add(0, _multiples(x, len(x), 100), x)


def _classified(x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, _multiples(x, len(x), x.shape[1]))


# A function that makes the layer for each contender, and the shape of its input.
LAYERS: dict[str, tuple[Callable[[], Layer], tuple[int, ...]]] = {
    "conv1d 9": (lambda: nn.Conv1d(64, 64, 9, padding=4), (8, 64, 400)),
    "conv2d 3": (lambda: nn.Conv2d(64, 64, 3, padding=1), (4, 64, 56, 56)),
    "conv2d 3, stride 2": (lambda: nn.Conv2d(64, 128, 3, 2, 1), (4, 64, 56, 56)),
    "conv2d 7, stem": (lambda: nn.Conv2d(3, 64, 7, 2, 3), (4, 3, 112, 112)),
    "conv2d 1": (lambda: nn.Conv2d(64, 256, 1), (4, 64, 28, 28)),
    "conv2d 16, patches": (lambda: nn.Conv2d(3, 192, 16, 16), (4, 3, 224, 224)),
    "conv2d 3, groups": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), (4, 64, 28, 28)),
    "conv2d 3, depthwise": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64), (8, 64, 28, 28)),
    "conv2d 7, depthwise": (lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (4, 96, 28, 28)),
    "conv3d 3": (lambda: nn.Conv3d(16, 16, 3, padding=1), (2, 16, 8, 28, 28)),
    "conv3d 3, depthwise": (
        lambda: nn.Conv3d(16, 16, 3, padding=1, groups=16),
        (2, 16, 8, 28, 28),
    ),
    "conv_transpose2d 4": (lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), (4, 64, 28, 28)),
    "lstm": (lambda: _Outputs(nn.LSTM(64, 128)), (50, 16, 64)),
    "gru": (lambda: _Outputs(nn.GRU(64, 128)), (50, 16, 64)),
    "max_pool2d 3": (lambda: nn.MaxPool2d(3, 2, 1), (8, 64, 56, 56)),
    "avg_pool2d 3": (lambda: nn.AvgPool2d(3, 2, 1), (8, 64, 56, 56)),
    "batch_norm2d": (lambda: nn.BatchNorm2d(64), (8, 64, 56, 56)),
    "group_norm": (lambda: nn.GroupNorm(8, 64), (8, 64, 28, 28)),
    "layer_norm": (lambda: nn.LayerNorm(512), (16, 64, 512)),
    "softmax": (lambda: nn.Softmax(-1), (16, 8, 128, 128)),
    "gelu": (nn.GELU, (16, 64, 1024)),
    "dropout": (nn.Dropout, (16, 64, 512)),
    "upsample, bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (8, 32, 28, 28)),
    "grid_sample": (lambda: _sampled, (8, 16, 28, 28)),
    "unfold": (lambda: nn.Unfold(3, padding=1), (4, 32, 28, 28)),
    "attention": (lambda: lambda x: F.scaled_dot_product_attention(x, x, x), (8, 4, 64, 32)),
    "attention, causal": (
        lambda: lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        (1, 8, 512, 64),
    ),
    "linear": (lambda: nn.Linear(512, 512), (256, 512)),
    "cross_entropy of 30,000": (lambda: _classified, (128, 30000)),
    "cumsum": (lambda: lambda x: x.cumsum(-1), (64, 4096)),
    "sort": (lambda: lambda x: x.sort(-1).values, (64, 4096)),
    "topk": (lambda: lambda x: x.topk(5, -1).values, (64, 4096)),
    "median": (lambda: lambda x: x.median(-1).values, (64, 1024)),
    "index_add": (lambda: _sums, (4000, 64)),
    "fft": (lambda: lambda x: torch.fft.rfft(x).abs(), (64, 1024)),
    "solve": (lambda: lambda x: torch.linalg.solve(x @ x.mT + torch.eye(64).to(x), x), (8, 64, 64)),
}


class _Outputs(nn.Module):
    """A recurrent layer that returns its outputs alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def run(words: list[str] | None = None) -> None:
    """Time all layers, or those with one of these words in their names."""
    for name, (make, shape) in LAYERS.items():
        if not words or any(word in name for word in words):
            contenders = {
                "torch_jax.jit": _call(make(), shape, "jax", compiled=True),
                "torch_jax eager": _call(make(), shape, "jax"),
                "PyTorch eager": _call(make(), shape, "cpu"),
            }
            times = sample(contenders, CALLS, ROUNDS, SECONDS, SETTLING_SECONDS)
            compare(f"{name}, forward and backward", times, {"PyTorch eager": 1.5}, "us", 1e6)


def _call(layer: Layer, shape: tuple[int, ...], device: str, compiled: bool = False) -> Any:
    parameters = []
    if isinstance(layer, nn.Module):
        parameters = list(layer.to(device).parameters())
    x = torch.randn(shape).to(device).requires_grad_()

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(layer(x).sum(), [x, *parameters])

    step = torch_jax.jit(step) if compiled else step

    def call() -> None:
        grads = step()
        if device == "jax":
            for grad in grads:
                wait(grad)

    return call


if __name__ == "__main__":
    run(sys.argv[1:])
