"""Tiny models of transformers, with weights that are drawn."""

from __future__ import annotations

import torch
from torch import nn


def drawn(name: str) -> nn.Module:
    """A tiny model of transformers, drawn anew from the same numbers."""
    import transformers

    tiny = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
    models = {
        "bert": lambda: transformers.BertForMaskedLM(
            transformers.BertConfig(**tiny, intermediate_size=32)
        ),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=32)
        ),
        "llama": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**tiny, intermediate_size=32, num_key_value_heads=1)
        ),
        "t5": lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(**t5, decoder_start_token_id=0)
        ),
        "umt5": lambda: transformers.UMT5ForConditionalGeneration(
            transformers.UMT5Config(**t5, decoder_start_token_id=0)
        ),
    }
    torch.manual_seed(0)
    return models[name]().eval()
