"""Models of transformers and PEFT under ``jit(pure=True)``: one program, and the CPU's losses."""

from __future__ import annotations

import copy

import pytest
import torch

import torch_jax
from tests.support import transformers_models

TOKENS = torch.arange(1, 15).reshape(2, 7)


def _model(name: str) -> torch.nn.Module:
    if name != "lora":
        return transformers_models.drawn(name)
    peft = pytest.importorskip("peft")
    targets = {"target_modules": ["c_attn"], "fan_in_fan_out": True, "lora_dropout": 0.0}
    model = transformers_models.drawn("gpt2")
    return peft.get_peft_model(model, peft.LoraConfig(r=4, **targets))


def _losses(model, tokens, through, calls: int = 4) -> list[float]:
    wanted = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=1e-2)

    def step(tokens):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = through(step)
    return [step(tokens).item() for _ in range(calls)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "umt5", "lora"])
def test_a_training_step_is_one_program(name):
    model = _model(name)
    expected = _losses(copy.deepcopy(model), TOKENS, lambda step: step)
    compiled = []

    def through(step):
        compiled.append(torch_jax.jit(step, pure=True))
        return compiled[0]

    actual = _losses(model.to("jax"), TOKENS.to("jax"), through)
    assert actual == pytest.approx(expected, rel=2e-4)
    explanation = compiled[0].explain()
    assert explanation.observed == 1 and not explanation.notes, explanation
