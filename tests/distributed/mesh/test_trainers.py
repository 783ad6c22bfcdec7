"""Lightning over eight devices: its Trainer, and Fabric."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.distributed.mesh.on_mesh import spec


@pytest.mark.slow
def test_lightning_trains_over_a_mesh():
    """Batches in parts, parameters on each device or in parts: the losses of the CPU."""
    from examples.trainers import with_lightning
    from torch_jax.integrations.lightning import JaxSpmdStrategy

    expected = with_lightning.main("cpu")
    rules = {"net.1.weight": ("data", None), "*": ()}
    for options in (
        {"strategy": "jax_spmd"},
        {"strategy": "jax_spmd", "devices": 4},
        {"strategy": JaxSpmdStrategy(rules)},
        {"strategy": JaxSpmdStrategy(rules), "whole_step": True},
    ):
        assert with_lightning.main("jax", **options) == pytest.approx(expected, rel=1e-4), options


@pytest.mark.slow
def test_fabric_trains_over_a_mesh():
    """Its loader gives batches in parts, and its model lies by the rules."""
    from lightning import Fabric

    from examples.trainers import data
    from torch_jax.integrations.lightning import FabricJaxSpmdStrategy

    def losses(**options: object) -> list[float]:
        fabric = Fabric(**options)
        model = data.classifier()
        model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        found = []
        for images, labels in fabric.setup_dataloaders(data.batches(3)):
            loss = F.cross_entropy(model(images), labels)
            if fabric.device.type == "jax":
                assert spec(images)[0] == "data", spec(images)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            found.append(loss.item())
        return found

    strategy = FabricJaxSpmdStrategy(rules={"1.weight": ("data", None), "*": ()})
    expected = losses(accelerator="cpu")
    assert losses(strategy=strategy) == pytest.approx(expected, rel=1e-4)
    assert dict(strategy.mesh.shape) == {"data": 8}
