"""transformers' common tests of models, on small GPT-2, Llama, BERT and UMT5.

For its source package of PyPI, which carries the common tests and not those of single models.
"""

from __future__ import annotations

import importlib
import unittest
from typing import Any

import torch
import transformers
from transformers.testing_utils import torch_device

common = importlib.import_module("tests.test_modeling_common")  # of transformers


class Sizes:
    """What the common tests ask for: sizes, a config, inputs."""

    batch_size, seq_length, is_training, num_choices = 13, 7, True, 4
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    vocab_size = 99

    def __init__(self, parent: Any):
        self.parent = parent

    def get_config(self) -> Any:
        return type(self.parent).make_config(self)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        ids = common.ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        ids = ids.clamp(min=3)  # none of the special tokens
        inputs = {"input_ids": ids, "attention_mask": self.mask()}
        if self.parent.is_encoder_decoder:
            inputs |= {"decoder_input_ids": ids.clone(), "decoder_attention_mask": self.mask()}
        return self.get_config(), {k: v.to(torch_device) for k, v in inputs.items()}

    def mask(self) -> torch.Tensor:
        return common.random_attention_mask([self.batch_size, self.seq_length])


class Common(common.ModelTesterMixin):
    def setUp(self) -> None:
        self.model_tester = Sizes(self)


class GPT2Test(Common, unittest.TestCase):
    all_model_classes = (
        transformers.GPT2Model,
        transformers.GPT2LMHeadModel,
        transformers.GPT2ForSequenceClassification,
        transformers.GPT2ForTokenClassification,
        transformers.GPT2ForQuestionAnswering,
    )

    @staticmethod
    def make_config(sizes: Sizes) -> Any:
        return transformers.GPT2Config(
            vocab_size=sizes.vocab_size,
            n_embd=sizes.hidden_size,
            n_layer=sizes.num_hidden_layers,
            n_head=sizes.num_attention_heads,
            n_positions=64,
            bos_token_id=98,
            eos_token_id=98,
            pad_token_id=98,
        )


class LlamaTest(Common, unittest.TestCase):
    all_model_classes = (transformers.LlamaModel, transformers.LlamaForCausalLM)

    @staticmethod
    def make_config(sizes: Sizes) -> Any:
        return transformers.LlamaConfig(
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.hidden_size,
            intermediate_size=37,
            num_hidden_layers=sizes.num_hidden_layers,
            num_attention_heads=sizes.num_attention_heads,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
        )


class BertTest(Common, unittest.TestCase):
    all_model_classes = (
        transformers.BertModel,
        transformers.BertForMaskedLM,
        transformers.BertForSequenceClassification,
    )

    @staticmethod
    def make_config(sizes: Sizes) -> Any:
        return transformers.BertConfig(
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.hidden_size,
            intermediate_size=37,
            num_hidden_layers=sizes.num_hidden_layers,
            num_attention_heads=sizes.num_attention_heads,
            max_position_embeddings=64,
        )


class UMT5Test(Common, unittest.TestCase):
    all_model_classes = (transformers.UMT5Model, transformers.UMT5ForConditionalGeneration)
    is_encoder_decoder = True

    @staticmethod
    def make_config(sizes: Sizes) -> Any:
        return transformers.UMT5Config(
            vocab_size=sizes.vocab_size,
            d_model=sizes.hidden_size,
            d_ff=37,
            d_kv=8,
            num_layers=sizes.num_hidden_layers,
            num_decoder_layers=sizes.num_hidden_layers,
            num_heads=sizes.num_attention_heads,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
        )


del Common  # it has no tests of its own
