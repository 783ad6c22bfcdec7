"""The models that are timed, as a PyTorch author writes them: a GPT, a ResNet and a linear layer.

The GPT has 6 layers, width 384, 6 heads and reads batches of 8 x 128 tokens. The ResNet has a stem
of 32 channels and three stages of two basic blocks and reads batches of 32 images of 32 x 32.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 6, 384, 6, 256, 8, 128
STAGES, BLOCKS, CLASSES, IMAGES, SIZE = (32, 64, 128), 2, 10, 32, 32
FEATURES, ROWS = 64, 32


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, length, width]`` to the same."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``[batch, length]`` int64 to ``[batch, length, vocabulary]``."""
        x = self.token(tokens) + self.position.weight
        return self.head(self.norm(self.blocks(x)))


class BasicBlock(nn.Module):
    """Two convolutions, each with a batch norm, around a residual."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, inputs, height, width]`` to ``[batch, outputs, ...]``."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Images to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, STAGES[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(STAGES[0])
        widths = [STAGES[0], *(width for width in STAGES for _ in range(BLOCKS))]
        pairs = zip(widths[:-1], widths[1:], strict=True)
        self.blocks = nn.Sequential(*[BasicBlock(i, o, 1 if i == o else 2) for i, o in pairs])
        self.head = nn.Linear(STAGES[-1], CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``[batch, 3, height, width]`` to ``[batch, classes]``."""
        x = self.blocks(torch.relu(self.norm(self.stem(images))))
        return self.head(x.mean((2, 3)))


def small_linear() -> nn.Module:
    """A layer so small that its calls cost more than its arithmetic."""
    return nn.Linear(FEATURES, FEATURES)


def gpt_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the ones that follow them, each ``[batch, length]`` int64, on the CPU."""
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def resnet_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Images ``[batch, 3, height, width]`` and their classes ``[batch]`` int64, on the CPU."""
    return torch.randn(IMAGES, 3, SIZE, SIZE), torch.randint(0, CLASSES, (IMAGES,))


def linear_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, each ``[rows, features]``, on the CPU."""
    return torch.randn(ROWS, FEATURES), torch.randn(ROWS, FEATURES)
