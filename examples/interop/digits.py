"""Scikit-learn's handwritten digits: 1797 images of 8x8, as tensors."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

TRAINED = 1408  # images to learn from: 11 batches of 128; the others are for the test


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images of shape (8, 8, 1), from 0 to 1, and their digits: to learn from, and for the test."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(-1) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return (
        TensorDataset(images[:TRAINED], labels[:TRAINED]),
        TensorDataset(images[TRAINED:], labels[TRAINED:]),
    )


def batches(data: TensorDataset, seed: int = 0) -> DataLoader:
    """Shuffled batches of 128."""
    return DataLoader(data, 128, shuffle=True, generator=torch.Generator().manual_seed(seed))
