"""Lightning's Trainer, with a metric of torchmetrics on the device."""

from __future__ import annotations

import tempfile
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torchmetrics.classification import MulticlassAccuracy

from examples.trainers import data


class Classifier(lightning.LightningModule):
    """A classifier of digits that keeps its losses."""

    def __init__(self) -> None:
        """The network of the other examples."""
        super().__init__()
        self.net = data.classifier()
        self.accuracy = MulticlassAccuracy(10)
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        self.scores = self.net(images)
        loss = F.cross_entropy(self.scores, labels)
        self.losses.append(loss.detach())
        return loss

    def on_train_batch_end(self, _outputs: Any, batch: Any, _number: int) -> None:
        """Count what is right, which looks at values: after the step, that may be one program."""
        self.accuracy.update(self.scores, batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(
    device: str, whole_step: bool = False, steps: int = 6, accelerator: str = "", **options: Any
) -> list[float]:
    """Losses of so many batches, and the accuracy over all; options are those of the Trainer."""
    callbacks = []
    if whole_step:
        from torch_jax.integrations.lightning import WholeStep

        callbacks.append(WholeStep())
    lightning.seed_everything(0, verbose=False)
    model = Classifier()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator=accelerator or ("cpu" if device == "cpu" else "auto"),
            max_epochs=1,
            gradient_clip_val=1.0,
            callbacks=callbacks,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        assert trainer.strategy.root_device.type == device
        trainer.fit(model, data.batches(steps))
    return [*(loss.item() for loss in model.losses), model.accuracy.compute().item()]
