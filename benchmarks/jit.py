"""``torch_jax.jit`` on a GPT and a ResNet, beside hand-written jitted JAX, eager, and the CPU's."""

from __future__ import annotations

from benchmarks import cases
from benchmarks.cases import GPT, RESNET
from benchmarks.models import BATCH, IMAGES, LAYERS, LENGTH, SIZE, WIDTH
from benchmarks.timing import compare, sample

ROUNDS, CALLS = 12, 2
OURS, BARE, EAGER, TORCH = (
    "torch_jax.jit", "hand-written JAX", "torch_jax eager", "PyTorch eager, CPU",
)  # fmt: skip


def _inference(case: cases.Case) -> dict[str, cases.Call]:
    return {
        OURS: cases.inference(case, "jax", compiled=True),
        BARE: cases.bare_inference(case),
        EAGER: cases.inference(case, "jax"),
        TORCH: cases.inference(case, "cpu"),
    }


def _training(case: cases.Case) -> dict[str, cases.Call]:
    return {
        OURS: cases.training(case, "jax", compiled=True),
        BARE: cases.bare_training(case),
        EAGER: cases.training(case, "jax"),
        TORCH: cases.training(case, "cpu"),
    }


def run() -> None:
    """Time inference and whole training steps of both."""
    gpt = f"GPT, {LAYERS} layers, width {WIDTH}, batch {BATCH}x{LENGTH}"
    resnet = f"ResNet, {IMAGES} images of {SIZE}x{SIZE}"
    for title, contenders, targets in (
        (f"{gpt}: inference", _inference(GPT), {BARE: 1.0}),
        (f"{gpt}: training step, AdamW", _training(GPT), {BARE: 0.9}),
        (f"{resnet}: inference", _inference(RESNET), {TORCH: 0.85}),
        (f"{resnet}: training step, SGD with momentum", _training(RESNET), {TORCH: 1.9}),
    ):
        compare(title, sample(contenders, CALLS, ROUNDS), targets)
