"""Real data that needs no network: scikit-learn's digits, and the text of torch_jax itself."""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_jax

CONTEXT = 16


def digits(count: int) -> TensorDataset:
    """So many images of 8x8, from 0 to 1, as (1, 8, 8), and their digits."""
    data = load_digits()
    images = torch.tensor(data.images[:count], dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(data.target[:count]))


def batches(steps: int, size: int = 32) -> DataLoader:
    """So many batches of digits, in order."""
    return DataLoader(digits(steps * size), size)


def classifier() -> nn.Module:
    """A small network for them, the same at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def text() -> str:
    """The settings of torch_jax, as they are described in its source."""
    return Path(torch_jax.__file__).with_name("config.py").read_text()


def tokens(count: int) -> list[dict[str, torch.Tensor]]:
    """So many pieces of the text, a token for each byte, as transformers' Trainer has them."""
    ids = torch.tensor(list(text().encode()[: count * CONTEXT])) % 128
    return [{"input_ids": piece, "labels": piece} for piece in ids.view(count, CONTEXT)]


def llama() -> nn.Module:
    """A small language model, the same at each call."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)
