"""The table of the README: models beside PyTorch on the CPU, inductor and hand-written JAX.

``python -m benchmarks.speed gpt vit`` times some rows; ``INDUCTOR=0`` leaves inductor out, which
compiles for minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import cases, compile, library_models
from benchmarks.cases import GPT, RESNET, Call, Case
from benchmarks.timing import compare, sample

JIT, COMPILED, EAGER = "torch_jax.jit", 'torch.compile(backend="jax")', "torch_jax eager"
TORCH, INDUCTOR, BARE = "PyTorch eager", "PyTorch inductor", "hand-written JAX"
ROUNDS, CALLS = 12, 2


class Row(NamedTuple):
    """A line: what runs, the way of ours that is held against others, and the ratios wanted."""

    title: str
    case: Case
    ours: str
    wanted: dict[str, float]
    trains: bool = True


ROWS = {
    "resnet": Row("ResNet training", RESNET, JIT, {TORCH: 1.0}),
    "resnet-inference": Row("ResNet inference", RESNET, JIT, {TORCH: 0.7}, trains=False),
    "gpt": Row("GPT training", GPT, JIT, {TORCH: 0.95, BARE: 0.75}),
    "gpt-compile": Row("GPT training, compiled", GPT, COMPILED, {BARE: 0.78}),
    "gpt-inference": Row("GPT inference", GPT, JIT, {TORCH: 0.8, BARE: 0.95}, trains=False),
    "resnet18": Row("timm resnet18 training", library_models.RESNET18, JIT, {TORCH: 1.0}),
    "vit": Row("timm vit_tiny training", library_models.VIT, JIT, {TORCH: 0.55}),
    "lora": Row("GPT-2 with LoRA training", library_models.LORA, JIT, {TORCH: 0.55}),
    "bf16": Row("GPT training, bf16 autocast", library_models.HALF_GPT, JIT, {TORCH: 0.7}),
    "char-gpt": Row("char GPT training", library_models.CHAR_GPT, JIT, {TORCH: 0.9}),
    "char-gpt-eager": Row("char GPT training, eager", library_models.CHAR_GPT, EAGER, {TORCH: 1.3}),
    "digits": Row("digits CNN training", library_models.DIGITS, JIT, {TORCH: 0.9}),
    "digits-eager": Row("digits CNN training, eager", library_models.DIGITS, EAGER, {TORCH: 1.5}),
}

_TRAINING: dict[str, Callable[[Case], Call]] = {
    JIT: lambda case: cases.training(case, "jax", compiled=True),
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
    """Time the rows of these names, or all."""
    for name in names or ROWS:
        row = ROWS[name]
        made = _TRAINING if row.trains else _INFERENCE
        contenders = {who: made[who](row.case) for who in _who(row)}
        compare(row.title, sample(contenders, CALLS, ROUNDS), row.wanted)


def _who(row: Row) -> list[str]:
    """Whose times are taken: inductor's where its programs can be compiled, for our own models."""
    found = [row.ours, TORCH]
    if row.case.jax_step is not None:
        can_compile = shutil.which(os.environ.get("CXX", "g++")) is not None
        found += [BARE, *[INDUCTOR] * (can_compile and os.environ.get("INDUCTOR") != "0")]
    return found


if __name__ == "__main__":
    run(sys.argv[1:])
