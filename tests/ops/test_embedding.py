"""Embeddings and bags of them against the CPU."""

import pytest
import torch
from torch.nn import functional as F

from tests.support.compare import check, check_raises

FLOATS = [torch.float32, torch.float64, torch.bfloat16]


def table(rows=7, columns=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=generator).to(dtype).requires_grad_(True)


INDICES = torch.tensor([[1, 2, 2], [6, 0, 2]])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}])
def test_embedding(dtype, options):
    check(lambda i, w: F.embedding(i, w, **options), INDICES, table(dtype=dtype), scale=2)
    check(lambda i, w: F.embedding(i, w, **options), INDICES.int(), table(dtype=dtype), scale=2)


def test_shapes():
    check(F.embedding, torch.tensor(3), table())
    check(F.embedding, torch.zeros(0, dtype=torch.int64), table())


def test_renorm_changes_the_table():
    check(lambda i, w: F.embedding(i, w, max_norm=0.5), INDICES, table().detach())
    check(lambda i, w: F.embedding(i, w, max_norm=0.5, norm_type=1.0), INDICES, table().detach())


def test_one_hot():
    check(lambda i: F.one_hot(i, 7), INDICES)
    check(F.one_hot, INDICES)


@pytest.mark.parametrize("index", [7, -1])
def test_index_out_of_range(index):
    check_raises(F.embedding, torch.tensor([0, index]), table())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_bags(mode, dtype):
    offsets = torch.tensor([0, 2, 2, 3])  # the second bag is empty
    for options in ({}, {"padding_idx": 2}):
        check(
            lambda i, w, o: F.embedding_bag(i, w, o, mode=mode, **options),  # noqa: B023
            *(INDICES.flatten(), table(dtype=dtype), offsets),
            scale=2,
        )
    check(lambda i, w: F.embedding_bag(i, w, mode=mode), INDICES, table(dtype=dtype), scale=2)


@pytest.mark.slow
def test_weighted_bags_and_last_offset():
    weights = torch.rand(6).requires_grad_(True)
    offsets = torch.tensor([0, 2, 6])
    check(
        lambda i, w, o, p: F.embedding_bag(
            i, w, o, mode="sum", per_sample_weights=p, include_last_offset=True
        ),
        *(INDICES.flatten(), table(), offsets, weights),
    )
    check(
        # with an index that repeats, PyTorch on the CPU looks up the frequency of another
        lambda i, w: F.embedding_bag(i, w, mode="mean", scale_grad_by_freq=True),
        *(torch.tensor([[1, 2], [6, 0]]), table()),
    )


def test_a_maximum_of_no_indices():
    none = torch.zeros(0, dtype=torch.int64)

    def bags(w, i, o):
        return F.embedding_bag(i, w, o, mode="max")

    check(bags, table(), none, torch.tensor([0, 0]))
