"""The models that are timed, as a PyTorch author writes them: a GPT, a ResNet and a linear layer.

The GPT has 6 layers, width 384, 6 heads and reads batches of 8 x 128 tokens. The ResNet has a stem
of 32 channels and three stages of two basic blocks and reads batches of 32 images of 32 x 32. Both
also come in the sizes that everybody knows: GPT-2's smallest, and ResNet-50.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, WIDTH, VOCABULARY, BATCH, LENGTH = 6, 384, 256, 8, 128
HEAD = 64  # features of each head
STAGES, BLOCKS, CLASSES, IMAGES, SIZE = (32, 64, 128), 2, 10, 32, 32
FEATURES, ROWS = 64, 32


class GptSizes(NamedTuple):
    """Hold the sizes of a GPT and of its batch."""

    layers: int = LAYERS
    width: int = WIDTH
    vocabulary: int = VOCABULARY
    batch: int = BATCH
    length: int = LENGTH


class ResNetSizes(NamedTuple):
    """Hold the sizes of a ResNet and of its batch.

    Attributes:
      stem: channels of the first convolution.
      stages: channels of each stage.
      blocks: of each stage.
      is_deep: blocks have three convolutions, and the stem halves its images twice.
      classes: of images.
      images: of a batch.
      size: rows and columns of an image.
    """

    stem: int = STAGES[0]
    stages: tuple[int, ...] = STAGES
    blocks: tuple[int, ...] = (BLOCKS,) * len(STAGES)
    is_deep: bool = False
    classes: int = CLASSES
    images: int = IMAGES
    size: int = SIZE


GPT, RESNET = GptSizes(), ResNetSizes()
GPT2 = GptSizes(12, 768, 50257, 4, 1024)  # 163 million parameters: 124, and a head of its own
SMALL_GPT = GptSizes(2, 64, 64, 2, 16)
SMALL_RESNET = ResNetSizes(8, (16, 32), (1, 2), True, 10, 4, 32)
RESNET50 = ResNetSizes(64, (256, 512, 1024, 2048), (3, 4, 6, 3), True, 1000, 64, 224)


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and around a residual."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, length, width]`` to the same."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Tokens to logits."""

    def __init__(self, sizes: GptSizes = GPT) -> None:
        super().__init__()
        width, vocabulary = sizes.width, sizes.vocabulary
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(sizes.length, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(sizes.layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

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
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, inputs, height, width]`` to ``[batch, outputs, ...]``."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class DeepBlock(nn.Module):
    """Three convolutions, the second of a quarter of the channels, around a residual."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 4
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(inner), nn.BatchNorm2d(inner)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, inputs, height, width]`` to ``[batch, outputs, ...]``."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Images to logits."""

    def __init__(self, sizes: ResNetSizes = RESNET) -> None:
        super().__init__()
        window, stride = (7, 2) if sizes.is_deep else (3, 1)
        self.stem = nn.Conv2d(3, sizes.stem, window, stride, window // 2, bias=False)
        self.norm = nn.BatchNorm2d(sizes.stem)
        self.pool = nn.MaxPool2d(3, 2, 1) if sizes.is_deep else nn.Identity()
        block, inputs, blocks = DeepBlock if sizes.is_deep else BasicBlock, sizes.stem, []
        for stage, (width, count) in enumerate(zip(sizes.stages, sizes.blocks, strict=True)):
            for at in range(count):
                blocks.append(block(inputs, width, 2 if stage and not at else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, sizes.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``[batch, 3, height, width]`` to ``[batch, classes]``."""
        x = self.blocks(self.pool(torch.relu(self.norm(self.stem(images)))))
        return self.head(x.mean((2, 3)))


def small_linear() -> nn.Module:
    """A layer so small that its calls cost more than its arithmetic."""
    return nn.Linear(FEATURES, FEATURES)


def gpt_batch(sizes: GptSizes = GPT) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the ones that follow them, each ``[batch, length]`` int64, on the CPU."""
    tokens = torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def resnet_batch(sizes: ResNetSizes = RESNET) -> tuple[torch.Tensor, torch.Tensor]:
    """Images ``[batch, 3, height, width]`` and their classes ``[batch]`` int64, on the CPU."""
    images = torch.randn(sizes.images, 3, sizes.size, sizes.size)
    return images, torch.randint(0, sizes.classes, (sizes.images,))


def linear_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, each ``[rows, features]``, on the CPU."""
    return torch.randn(ROWS, FEATURES), torch.randn(ROWS, FEATURES)
