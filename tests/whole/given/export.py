"""Given in docs/export.md."""

import sys

import numpy
import torch

from torch_jax.exporting import exported_file

sys.modules["exported_file"] = exported_file  # the copy that the page speaks of


class Model(torch.nn.Module):
    """Embeddings under a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeddings, or zeros."""
        return self.embedding(input_ids) * attention_mask[..., None]


model = Model().to("jax")
input_ids, mask = torch.ones(2, 4, dtype=torch.long), torch.ones(2, 4)
numpy.savez("points.npz", points=numpy.ones((2, 4)))
