"""Models of libraries and of the demo as cases: models that users bring.

timm's ResNet-18 and smallest vision transformer on images of 32 x 32, a GPT-2 of transformers with
LoRA by PEFT, the demo's character GPT and digits CNN, an LSTM over words and a small U-Net over
volumes. Weights are drawn, not loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.cases import Case, Tensors, adamw, cross_entropy, sgd
from benchmarks.models import Gpt, gpt_batch
from demo.models import CharGPT, DigitsCNN

_IMAGES, _SIZE, _CLASSES = 8, 32, 10
_TOKENS = (4, 64)
_VOCABULARY = 96


def _timm(name: str, **options: Any) -> nn.Module:
    from tests.support import stand_in_torchvision

    stand_in_torchvision.install()  # unless it is there: timm asks for it at its import
    try:
        import timm

        return timm.create_model(name, num_classes=_CLASSES, **options)
    finally:
        stand_in_torchvision.take_away()


def _images() -> Tensors:
    return torch.randn(_IMAGES, 3, _SIZE, _SIZE), torch.randint(0, _CLASSES, (_IMAGES,))


class _Logits(nn.Module):
    """A causal language model of transformers that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def _gpt2_with_lora() -> nn.Module:
    import peft
    import transformers

    config = transformers.GPT2Config(
        vocab_size=1000, n_positions=128, n_embd=256, n_layer=4, n_head=4
    )
    lora = peft.LoraConfig(r=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    return _Logits(peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora))


def _tokens() -> Tensors:
    tokens = torch.randint(0, 1000, (_TOKENS[0], _TOKENS[1] + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _trained(params: Any) -> torch.optim.Optimizer:
    return adamw([p for p in params if p.requires_grad])


def _characters() -> Tensors:
    tokens = torch.randint(0, _VOCABULARY, (16, 129))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _digits() -> Tensors:
    return torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,))


def _vit() -> nn.Module:
    return _timm("vit_tiny_patch16_224", img_size=_SIZE, patch_size=8)


class _WordLSTM(nn.Module):
    """Tokens to logits by two recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Embedding(1000, 128), nn.Linear(256, 1000)
        self.layers = nn.LSTM(128, 256, 2, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.token(tokens))[0])


class _VolumeNet(nn.Module):
    """Volumes to classes of voxels: halved, and doubled again beside what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.inner = nn.Conv3d(1, 16, 3, padding=1), nn.Conv3d(16, 32, 3, 2, 1)
        self.up, self.head = nn.ConvTranspose3d(32, 16, 2, 2), nn.Conv3d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.outer(x))
        deep = self.up(torch.relu(self.inner(wide)))
        return self.head(torch.cat((wide, deep), 1)).movedim(1, -1)


def _volumes() -> Tensors:
    return torch.randn(2, 1, 16, 32, 32), torch.randint(0, 4, (2, 16, 32, 32))


RESNET18 = Case(lambda: _timm("resnet18"), _images, sgd, cross_entropy)
VIT = Case(_vit, _images, adamw, cross_entropy)
LORA = Case(_gpt2_with_lora, _tokens, _trained, cross_entropy)
HALF_GPT = Case(Gpt, gpt_batch, adamw, cross_entropy, autocast=torch.bfloat16)
CHAR_GPT = Case(lambda: CharGPT(_VOCABULARY), _characters, adamw, cross_entropy)
WORD_LSTM = Case(_WordLSTM, _tokens, adamw, cross_entropy)
VOLUMES = Case(_VolumeNet, _volumes, adamw, cross_entropy)
DIGITS = Case(lambda: DigitsCNN(0.0), _digits, sgd, cross_entropy)
