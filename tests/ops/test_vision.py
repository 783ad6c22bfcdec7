"""Operators of torchvision, defined here where the package is not installed."""

import pytest
import torch


@pytest.fixture
def nms():
    try:
        import torchvision  # noqa: F401

        yield torch.ops.torchvision.nms
    except (ImportError, RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl("nms", greedy, "CPU")
        yield torch.ops.torchvision.nms
        library._destroy()


def greedy(dets, scores, iou_threshold):
    """The textbook loop."""
    kept: list[int] = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if all(overlap(dets[i], dets[j]) <= iou_threshold for j in kept):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def overlap(a, b):
    shared = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0).prod()
    return shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared)


@pytest.mark.parametrize("count", [0, 1, 60])
def test_nms(nms, count):
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(count, 2, generator=generator) * 10
    boxes = torch.cat([corner, corner + 1 + torch.rand(count, 2, generator=generator) * 5], 1)
    scores = torch.rand(count, generator=generator)
    expected = nms(boxes, scores, 0.3)
    assert torch.equal(nms(boxes.to("jax"), scores.to("jax"), 0.3).cpu(), expected)
