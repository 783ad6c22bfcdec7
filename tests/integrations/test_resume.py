"""A training that goes on from a checkpoint is the one that was not interrupted."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_the_trainer_goes_on_with_its_random_numbers_and_its_scaler(tmp_path):
    from transformers import Trainer, TrainingArguments

    from examples.trainers import data

    def trainer() -> Trainer:
        model = data.llama()
        model.config.attention_dropout = 0.5
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.5
        arguments = TrainingArguments(
            tmp_path,
            max_steps=4,
            save_steps=2,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            fp16=True,
        )
        return Trainer(model, arguments, train_dataset=data.tokens(64))

    def losses(made: Trainer) -> list[float]:
        return [row["loss"] for row in made.state.log_history if "loss" in row]

    whole = trainer()
    whole.train()
    resumed = trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-6)
    (tmp_path / "checkpoint-2" / "random_state_jax_0.pt").unlink()
    other = trainer()
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert losses(other)[2:] != pytest.approx(losses(whole)[2:], rel=1e-6)
