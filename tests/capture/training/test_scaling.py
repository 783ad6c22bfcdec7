"""``torch.amp.GradScaler`` under ``torch_jax.jit``."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn, optim

import torch_jax
from tests.support.difference import How, difference
from tests.support.observe import observe

INFINITE = (0, 4, 5, 11)  # the steps whose gradients are not finite
OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: optim.Adam(p, lr=0.1, capturable=True),
    "adamw foreach": lambda p: optim.AdamW(p, lr=0.1, capturable=True, foreach=True),
    "adamw for loop": lambda p: optim.AdamW(p, lr=0.1, capturable=True, foreach=False),
    "adamw of defaults": lambda p: optim.AdamW(p, lr=0.1),
    "adamw fused": lambda p: optim.AdamW(p, lr=0.1, fused=True),
    "nadam": lambda p: optim.NAdam(p, lr=0.1, capturable=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, capturable=True),
}


class Training:
    """A small model with an optimizer and a scaler; in float64, that rounding does not grow."""

    def __init__(self, make, compile=lambda step: step, clip=False, parts=1, enabled=True):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double().to("jax")
        self.optimizer = make(self.model.parameters())
        self.scaler = torch.amp.GradScaler(
            "jax", init_scale=64.0, growth_interval=3, enabled=enabled
        )
        self.clip, self.parts, self.step = clip, parts, compile(self.one_step)

    def one_step(self, x):
        self.optimizer.zero_grad()
        for part in x.chunk(self.parts):
            loss = self.model(part).square().mean()
            self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def run(self, steps):
        """Yield the state after each step, and the optimizer at the end."""
        for index in range(steps):
            x = torch.randn(6, 4, dtype=torch.float64)
            if index in INFINITE and self.scaler.is_enabled():
                x[0, 0] = float("inf")
            before = [p.detach().cpu() for p in self.model.parameters()]
            loss, parameters = self.step(x.to("jax")), [*self.model.parameters()]
            if index in INFINITE and self.scaler.is_enabled():
                assert all(torch.equal(b, p.cpu()) for b, p in zip(before, parameters, strict=True))
            tracker = getattr(self.scaler, "_growth_tracker", None)
            yield loss, self.scaler.get_scale(), tracker, [p.detach() for p in parameters]
        yield self.optimizer


def training(name, steps=8, **options):
    return lambda compile: Training(OPTIMIZERS[name], compile, **options).run(steps)


def the_rate_changes(compile):
    self = Training(OPTIMIZERS["adam"])
    schedule = optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.5)
    self.step = compile(lambda x: (self.one_step(x), schedule.step())[0])
    self.optimizer.step()  # else PyTorch warns, as the first step with a gradient is skipped
    yield from self.run(5)
    self.optimizer.param_groups[0]["lr"] = 0.01
    yield from self.run(5)


def two_optimizers_skip_on_their_own(compile):
    a, b = (nn.Parameter(torch.ones(3, device="jax")) for _ in range(2))
    optimizers = [optim.SGD([p], lr=0.5, momentum=0.5) for p in (a, b)]
    scaler = torch.amp.GradScaler("jax", init_scale=8.0)

    def step(x, y):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale((a * x).sum() + (b * y).sum()).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()

    step = compile(step)
    for x, y in ((1.0, 2.0), (float("inf"), 1.0), (1.0, float("nan")), (3.0, 1.0), (2.0, 2.0)):
        step(torch.tensor(x, device="jax"), torch.tensor(y, device="jax"))
        yield a.detach(), b.detach(), scaler.get_scale()


def eager_steps_between(compile):
    self = Training(OPTIMIZERS["adam"], compile)
    compiled, calls = self.step, iter(range(20))
    self.step = lambda x: (self.one_step if next(calls) % 3 == 1 else compiled)(x)
    yield from self.run(12)


def the_state_is_saved_and_loaded(compile):
    self = Training(OPTIMIZERS["sgd"], compile)
    yield from self.run(3)
    state = self.scaler.state_dict()
    assert state["scale"] == 32.0 and state["_growth_tracker"] == 2
    self.scaler.load_state_dict(state | {"scale": 8.0})
    yield self.step(torch.ones(6, 4, dtype=torch.float64, device="jax"))
    assert self.scaler.get_scale() == 16.0


PROGRAMS = {
    **{name: training(name, 13) for name in OPTIMIZERS},
    "adam, clipped": training("adam", 13, clip=True),
    "adamw fused, clipped": training("adamw fused", 13, clip=True),
    "accumulated": training("sgd", parts=3),
    "switched off": training("sgd", enabled=False),
    "rates": the_rate_changes,
    "two optimizers": two_optimizers_skip_on_their_own,
    "in turn": eager_steps_between,
    "saved": the_state_is_saved_and_loaded,
}


CASES = [pytest.param(n, marks=() if n == "rates" else pytest.mark.slow) for n in PROGRAMS]


@pytest.mark.parametrize("pure", [False, True], ids=["recorded", "pure"])
@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_plain_calls(name, pure):
    """The scaler looks at a value, except for fused steps: then a pure function's Python runs."""
    looks = pure and name != "switched off" and "fused" not in name

    def shown(compile):
        torch.manual_seed(0)
        return [observe(value) for value in PROGRAMS[name](compile)]

    with pytest.warns(UserWarning, match="looks at a value") if looks else nullcontext():
        found = shown(torch_jax.jit(pure=pure))
    expected = shown(lambda step: step)
    assert difference(found, expected, How(("_version", "view"), 1e-4)) is None
