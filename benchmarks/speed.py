"""The table of the README: models beside PyTorch on the CPU, inductor and hand-written JAX.

``python -m benchmarks.speed gpt vit`` times some rows; ``INDUCTOR=1`` has inductor beside them,
which compiles for minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import cases, compile
from benchmarks.cases import GPT, RESNET, Call, Case
from benchmarks.library_models import (
    CHAR_GPT,
    DIGITS,
    HALF_GPT,
    LORA,
    RESNET18,
    VIT,
    VOLUMES,
    WORD_LSTM,
)
from benchmarks.timing import compare, sample

JIT, COMPILED, EAGER = "torch_jax.jit", 'torch.compile(backend="jax")', "torch_jax eager"
PURE = "torch_jax.jit(pure=True)"
TORCH, INDUCTOR, BARE = "PyTorch eager", "PyTorch inductor", "hand-written JAX"
ROUNDS, CALLS, SECONDS = 100, 1, 8.0  # seconds of rounds for each row, about
ONLY_IF_NAMED = ("bf16",)  # processors without bfloat16 take ten seconds for a step of PyTorch's


class Row(NamedTuple):
    """A line: what runs, the way of ours that is held against others, and the ratios wanted."""

    title: str
    case: Case
    ours: str
    wanted: dict[str, float]
    trains: bool = True


ROWS = {
    "resnet": Row("ResNet, training step with SGD", RESNET, JIT, {TORCH: 1.0}),
    "resnet-eager": Row("ResNet, training step with SGD", RESNET, EAGER, {TORCH: 1.05}),
    "resnet-inference": Row("ResNet, inference", RESNET, JIT, {TORCH: 0.7}, trains=False),
    "gpt": Row("GPT, training step with AdamW", GPT, JIT, {TORCH: 0.95, BARE: 0.75}),
    "gpt-eager": Row("GPT, training step with AdamW", GPT, EAGER, {TORCH: 1.05}),
    "gpt-compile": Row("GPT, training step with AdamW", GPT, COMPILED, {BARE: 0.78}),
    "gpt-inference": Row("GPT, inference", GPT, JIT, {TORCH: 0.8, BARE: 0.95}, trains=False),
    "bf16": Row("GPT, bfloat16 autocast, training step", HALF_GPT, JIT, {TORCH: 0.7}),
    "resnet18": Row("timm's resnet18, training step", RESNET18, JIT, {TORCH: 1.0}),
    "resnet18-pure": Row("timm's resnet18, training step", RESNET18, PURE, {TORCH: 1.0}),
    "vit": Row("timm's vit_tiny, training step", VIT, JIT, {TORCH: 0.55}),
    "vit-pure": Row("timm's vit_tiny, training step", VIT, PURE, {TORCH: 0.55}),
    "lora": Row("GPT-2 with LoRA by PEFT, training step", LORA, JIT, {TORCH: 0.55}),
    "lora-pure": Row("GPT-2 with LoRA by PEFT, training step", LORA, PURE, {TORCH: 0.55}),
    "char-gpt": Row("char GPT, training step", CHAR_GPT, JIT, {TORCH: 0.9}),
    "char-gpt-eager": Row("char GPT, training step", CHAR_GPT, EAGER, {TORCH: 1.3}),
    "lstm": Row("LSTM over words, training step", WORD_LSTM, JIT, {TORCH: 1.2}),
    "lstm-eager": Row("LSTM over words, training step", WORD_LSTM, EAGER, {TORCH: 1.3}),
    "volumes": Row("U-Net over volumes, training step", VOLUMES, JIT, {TORCH: 1.2}),
    "digits": Row("digits CNN, training step", DIGITS, JIT, {TORCH: 0.9}),
    "digits-pure": Row("digits CNN, training step", DIGITS, PURE, {TORCH: 0.9}),
    "digits-eager": Row("digits CNN, training step", DIGITS, EAGER, {TORCH: 1.5}),
}

_TRAINING: dict[str, Callable[[Case], Call]] = {
    JIT: lambda case: cases.training(case, "jax", compiled=True),
    PURE: lambda case: cases.training(case, "jax", compiled=True, pure=True),
    COMPILED: lambda case: compile.training(case, "jax", "jax"),
    EAGER: lambda case: cases.training(case, "jax"),
    TORCH: lambda case: cases.training(case, "cpu"),
    INDUCTOR: lambda case: compile.training(case, "cpu", "inductor"),
    BARE: cases.bare_training,
}
_INFERENCE: dict[str, Callable[[Case], Call]] = {
    JIT: lambda case: cases.inference(case, "jax", compiled=True),
    TORCH: lambda case: cases.inference(case, "cpu"),
    INDUCTOR: lambda case: compile.inference(case, "cpu", "inductor"),
    BARE: cases.bare_inference,
}


def run(names: list[str] | None = None) -> None:
    """Time the rows of these names, or all but those that take minutes."""
    for name in names or [name for name in ROWS if name not in ONLY_IF_NAMED]:
        row = ROWS[name]
        made = _TRAINING if row.trains else _INFERENCE
        contenders = {who: made[who](row.case) for who in _who(row)}
        compare(row.title, sample(contenders, CALLS, ROUNDS, SECONDS), row.wanted)


def _who(row: Row) -> list[str]:
    """Whose times are taken: for our own models also those of JAX, and of inductor if asked."""
    if row.case.jax_step is None:
        return [row.ours, TORCH]
    return [row.ours, TORCH, BARE, *[INDUCTOR] * (os.environ.get("INDUCTOR") == "1")]


if __name__ == "__main__":
    run(sys.argv[1:])
