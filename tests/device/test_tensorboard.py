"""``SummaryWriter`` takes tensors of the device, and writes the same as for the CPU's."""

from __future__ import annotations

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter


def written(folder, device):
    """What a reader finds of tensors of a device."""
    x = torch.arange(24.0).view(8, 3).to(device)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).to(device)
    with SummaryWriter(str(folder)) as writer:
        writer.add_scalar("scalar", x.mean(), 1)
        writer.add_histogram("histogram", x.bfloat16(), 1)
        writer.add_image("image", (x[None] / 24).expand(3, 8, 3), 1)
        writer.add_embedding(x, metadata=list("abcdefgh"), global_step=1)
        writer.add_pr_curve("curve", x[:, 0] > 3, x[:, 0] / 24)
        writer.add_graph(model, x)
    found = EventAccumulator(str(folder)).Reload()
    (scalar,), (histogram,) = found.Scalars("scalar"), found.Histograms("histogram")
    nodes = [node.op for node in found.Graph().node]
    vectors = next(folder.rglob("tensors.tsv")).read_text()
    image = found.Images("image")[0].encoded_image_string
    return scalar.value, histogram.histogram_value, image, vectors, nodes


@pytest.mark.slow
def test_what_is_written_is_what_the_cpu_writes(tmp_path):
    assert written(tmp_path / "jax", "jax") == written(tmp_path / "cpu", "cpu")
