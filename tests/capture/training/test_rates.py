"""Training steps that compute their own numbers: learning rates, weights and decays by a count."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import torch_jax


@dataclasses.dataclass
class Config:
    """What a run is told."""

    lr: float = 0.01
    warmup: int = 3
    accumulate: int = 2
    decay: float = 0.99
    penalty: float = 0.0


class Trainer:
    """Accumulates gradients, warms up, anneals, and averages the weights."""

    def __init__(self, device: str):
        torch.manual_seed(0)
        layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)
        self.model = torch.nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1.0)
        self.average = [p.detach().clone() for p in self.model.parameters()]
        self.config, self.batches, self.steps = Config(), 0, 0

    def rate(self) -> float:
        """The learning rate of this step."""
        return self.config.lr * min(1.0, (self.steps + 1) / self.config.warmup)

    def step(self, x: torch.Tensor, weight: float) -> torch.Tensor:
        """One batch."""
        y = self.model(x)
        loss = (y - x).square().mean() + weight * y.abs().mean() + self.config.penalty * y.mean()
        (loss / self.config.accumulate).backward()
        self.batches += 1
        if self.batches % self.config.accumulate == 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1
            decay = min(self.config.decay, (1 + self.steps) / (10 + self.steps))
            with torch.no_grad():
                for mean, p in zip(self.average, self.model.parameters(), strict=True):
                    mean.lerp_(p, 1 - decay)
        return loss.detach()


@pytest.mark.slow
def test_a_step_with_all_of_it():
    """Nothing of it may be skipped: its Python counts. What is compiled is compiled a few times."""
    plain, trainer = Trainer("cpu"), Trainer("jax")
    step = torch_jax.jit(trainer.step)
    generator = torch.Generator().manual_seed(1)
    for index in range(16):
        x = torch.randn(4, 8, generator=generator)
        for one in (plain, trainer):
            one.config.penalty = 0.01 * index
        weight = 1 / (index + 1)
        torch.testing.assert_close(step(x.to("jax"), weight).cpu(), plain.step(x, weight))
        for name in ("batches", "steps"):
            assert getattr(trainer, name) == getattr(plain, name)
        assert _rate(trainer.optimizer) == _rate(plain.optimizer)
        if index == 3:
            made = step.explain().programs.made
    torch.testing.assert_close([p.cpu() for p in trainer.average], plain.average)
    assert step.explain().programs.made == made


def _rate(optimizer):
    rate = optimizer.param_groups[0]["lr"]
    assert type(rate) is float
    return rate


def test_the_same_step_as_a_pure_function_is_found_out():
    trainer = Trainer("jax")
    step = torch_jax.jit(trainer.step, pure=True, audit="error")
    x = torch.ones(4, 8, device="jax")
    step(x, 1.0)
    with pytest.raises(torch_jax.VerificationError, match="is not pure"):
        for _ in range(8):
            step(x, 1.0)
