"""ignite: a supervised trainer, and a metric, on the device that they are given."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.metrics import RunningAverage

from examples.trainers import data


def main(device: str, whole_step: bool = False, steps: int = 6) -> list[float]:
    """Losses of so many batches, and their running average."""
    model = data.classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = create_supervised_trainer(
        model, optimizer, F.cross_entropy, device, output_transform=lambda x, y, found, loss: loss
    )
    if whole_step:
        from torch_jax.integrations.ignite import whole_step as as_one_program

        as_one_program(trainer)
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    losses: list[float] = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def keep(engine: Engine) -> None:
        losses.append(engine.state.output.item())

    state = trainer.run(data.batches(steps))
    return [*losses, float(state.metrics["loss"])]
