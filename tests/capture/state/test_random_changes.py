"""Training with random changes between the steps: compiled as eager, whatever their order."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import torch_jax


class Trainer:
    """A model, an optimizer, a scheduler and settings, all of which change between steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            # no bias in front of the norm: its gradient is zero but for rounding
            nn.Linear(3, 4, bias=False),
            nn.BatchNorm1d(4),
            nn.Dropout(0.2),
            nn.Linear(4, 2),
        ).to("jax")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.8)
        self.scale, self.count, self.losses = 1.0, 0, []
        self.saved = copy.deepcopy(self.model.state_dict())
        self.handles: list[Any] = []
        torch.manual_seed(1)

    def step(self, x):
        self.count += 1
        self.optimizer.zero_grad()
        loss = (self.model(x) * self.scale).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(loss.detach())
        return loss

    def change(self, name: str, number: int) -> None:
        getattr(self, f"_{name}")(number)

    def _lr(self, number):
        self.optimizer.param_groups[0]["lr"] = 0.01 * (1 + number)

    def _momentum(self, number):
        self.optimizer.param_groups[0]["momentum"] = (0.5, 0.9, 0.0)[number]

    def _scale(self, number):
        self.scale = (1.0, 2, True)[number]

    def _mode(self, number):
        self.model.train(number > 0)

    def _freeze(self, number):
        self.model[0].requires_grad_(number > 0)

    def _dropout(self, number):
        self.model[2].p = 0.2 * number

    def _load(self, number):
        self.model.load_state_dict(self.saved, assign=False)
        if number:
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))

    def _forget(self, number):
        self.optimizer.state.clear()

    def _hook(self, number):
        for handle in self.handles:
            handle.remove()
        self.handles = [
            self.model[3].register_forward_hook(lambda module, args, out: out * (1 + number))
        ]

    def _data(self, number):
        self.model[3].weight.data = torch.full((2, 4), 0.1 * (1 + number), device="jax")

    def _swap(self, number):
        self.model[3].bias = nn.Parameter(torch.full((2,), 0.1 * number, device="jax"))

    def _seed(self, number):
        torch.manual_seed(number)

    def _count(self, number):
        self.count = number


NAMES = [name[1:] for name in vars(Trainer) if name.startswith("_") and name[1] != "_"]
STEP = ("step", 0)
changes = st.lists(
    st.one_of(st.just(STEP), st.tuples(st.sampled_from(NAMES), st.integers(0, 2))), max_size=7
)


def check(events: list[tuple[str, int]]) -> Any:
    plain, compiled = Trainer(), Trainer()
    step = torch_jax.jit(compiled.step)
    # not along one line: behind the norm nothing but rounding would be left of the gradients
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to("jax")
    states = []
    for trainer, run in ((plain, plain.step), (compiled, step)):
        torch.manual_seed(1)
        for name, number in [STEP, *events, STEP, STEP]:
            run(x) if name == "step" else trainer.change(name, number)
        gradients = {n: p.grad for n, p in trainer.model.named_parameters()}
        state = [trainer.model.state_dict(), gradients, trainer.losses, trainer.count]
        state += [trainer.optimizer.param_groups[0]["lr"], trainer.scheduler.last_epoch]
        state += [trainer.optimizer.state_dict()["state"]]
        states.append(state)
    move = lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t  # noqa: E731
    ours, theirs = (torch.utils._pytree.tree_map(move, state) for state in states[::-1])
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5)
    return step


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_one_change(name):
    check([(name, 2), STEP, (name, 0)])


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes)
def test_any_changes(events):
    check(events)
