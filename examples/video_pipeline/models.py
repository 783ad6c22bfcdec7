"""The parts of a Wan video pipeline, tiny and with random weights, each built from its config.

The classes are those that run the real checkpoints; only widths, depths and the vocabulary are
small. Nothing is downloaded.
"""

import string
from dataclasses import dataclass

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanTransformer3DModel
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from torch import nn
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

WIDTH = 32  # of a prompt's embeddings


@dataclass
class Models:
    """What a graph loads and offloads, and the tokenizer and scheduler, which stay on the CPU."""

    text_encoder: UMT5EncoderModel
    transformer: WanTransformer3DModel
    vae: AutoencoderKLWan
    tokenizer: PreTrainedTokenizerFast
    scheduler: UniPCMultistepScheduler

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The three models by name."""
        names = ("text_encoder", "transformer", "vae")
        return {name: getattr(self, name) for name in names}


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each printable character."""
    special = ["<pad>", "</s>", "<unk>"]
    ids = {token: i for i, token in enumerate([*special, *string.printable])}
    backend = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def text_encoder() -> UMT5EncoderModel:
    """int64 [batch, length] -> float32 [batch, length, WIDTH]. Dropout is at UMT5's own 0.1."""
    config = UMT5Config(
        vocab_size=128, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.1
    )
    return UMT5EncoderModel(config)


def transformer() -> WanTransformer3DModel:
    """Latents [batch, 16, t, h, w], a timestep [batch], embeddings -> the flow, as latents."""
    return WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=16,
        out_channels=16, text_dim=WIDTH, freq_dim=64, ffn_dim=48, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip


def vae() -> AutoencoderKLWan:
    """Latents [batch, 16, t, h, w] -> video [batch, 3, 4 t - 3, 8 h, 8 w], frame after frame.

    It normalizes pixels over their channels. With four channels only, some are nearly zero before,
    and their rounding errors grow tenfold; eight are enough.
    """
    return AutoencoderKLWan(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )  # fmt: skip


def scheduler() -> UniPCMultistepScheduler:
    """The scheduler of Wan 2.1: UniPC over flow-matching sigmas."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000,
        flow_shift=3.0,
    )  # fmt: skip


def build(seed: int = 0) -> Models:
    """All parts on the CPU, in inference mode; the same weights for the same seed."""
    torch.manual_seed(seed)
    parts = text_encoder().eval(), transformer().eval(), vae().eval()
    return Models(*parts, tokenizer(), scheduler())
