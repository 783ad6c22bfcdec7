"""The Trainer of transformers: ``Trainer(model, arguments, ...).train()``, and LoRA by PEFT."""

from __future__ import annotations

import tempfile
from typing import Any

from transformers import Trainer, TrainingArguments

from examples.trainers import data


def main(
    device: str, whole_step: bool = False, steps: int = 4, lora: bool = False, **options: Any
) -> list[float]:
    """Losses of so many steps; options are those of ``TrainingArguments``."""
    model = data.llama()
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    callbacks = []
    if whole_step:
        from torch_jax.integrations.transformers import WholeStep

        callbacks.append(WholeStep())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=device == "cpu",
            **options,
        )
        assert arguments.device.type == device
        trainer = Trainer(model, arguments, train_dataset=data.tokens(64), callbacks=callbacks)
        trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]
