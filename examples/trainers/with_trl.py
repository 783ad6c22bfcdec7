"""TRL: supervised fine-tuning of a small model on text, with a tokenizer that is made here."""

from __future__ import annotations

import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from examples.trainers import data


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each of the 120 words of the text that come first, and three others."""
    found = pre_tokenizers.Whitespace().pre_tokenize_str(data.text())
    words = dict.fromkeys(["<pad>", "<eos>", "<unk>", *(word for word, _ in found)])
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(list(words)[:123])}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def main(device: str, whole_step: bool = False, steps: int = 3) -> list[float]:
    """Losses of so many steps, in float32."""
    callbacks = []
    if whole_step:
        from torch_jax.integrations.transformers import WholeStep

        callbacks.append(WholeStep())
    lines = [line for line in data.text().splitlines() if len(line.split()) > 5]
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder,
            max_steps=steps,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            max_length=16,
            pad_to_multiple_of=16,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            bf16=False,
            use_cpu=device == "cpu",
        )
        assert arguments.device.type == device
        trainer = SFTTrainer(
            data.llama(),
            arguments,
            train_dataset=Dataset.from_dict({"text": lines}),
            processing_class=tokenizer(),
            callbacks=callbacks,
        )
        trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]
