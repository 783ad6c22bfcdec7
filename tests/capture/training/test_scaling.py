"""``torch.amp.GradScaler`` under ``torch_jax.jit``: the device skips steps, not Python."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.jitted import assert_run, both

INFINITE = (0, 4, 5, 11)  # the steps whose gradients are not finite

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, capturable=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.1, capturable=True, foreach=True),
    "adamw for loop": lambda p: torch.optim.AdamW(p, lr=0.1, capturable=True, foreach=False),
    "adamw of defaults": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1, capturable=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, capturable=True),
}


class Training:
    """A small model with an optimizer and a scaler; in float64, that rounding does not grow."""

    def __init__(self, device, make, wrap=lambda step: step, clip=False, accumulate=1):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double().to(device)
        self.optimizer = make(self.model.parameters())
        self.scaler = torch.amp.GradScaler(device, init_scale=64.0, growth_interval=3)
        self.device, self.clip, self.accumulate = device, clip, accumulate
        self.step = wrap(self.one_step)

    def one_step(self, x):
        self.optimizer.zero_grad()
        for part in x.chunk(self.accumulate):
            loss = self.model(part).square().mean()
            self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def run(self, steps):
        """What is left after each step: loss, scale, growth tracker, parameters."""
        generator, history = torch.Generator().manual_seed(1), []
        for index in range(steps):
            x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
            if index in INFINITE:
                x[0, 0] = float("inf")
            loss = self.step(x.to(self.device))
            history.append(
                (
                    loss.detach().cpu(),
                    self.scaler.get_scale(),
                    self.scaler._growth_tracker.item(),
                    [p.detach().cpu().clone() for p in self.model.parameters()],
                )
            )
        return history

    def state(self):
        """The tensors of the optimizer's state, on the CPU."""
        return [
            {key: value.cpu() for key, value in state.items() if isinstance(value, torch.Tensor)}
            for state in self.optimizer.state_dict()["state"].values()
        ]


def agree(first, second):
    torch.testing.assert_close(first, second, equal_nan=True, rtol=1e-4, atol=1e-5)


CASES = [(name, False) for name in OPTIMIZERS] + [("adam", True), ("adamw fused", True)]


@both
@pytest.mark.parametrize("name, clip", CASES)
@pytest.mark.slow
def test_training_is_that_of_eager_and_of_the_cpu(name, clip, pure):
    make = OPTIMIZERS[name]
    eager, jitted = (
        Training("jax", make, wrap, clip) for wrap in (lambda f: f, torch_jax.jit(pure=pure))
    )
    history = jitted.run(20)
    agree(history, eager.run(20))
    agree(jitted.state(), eager.state())
    assert {scale for _, scale, *_ in history} > {16.0, 32.0}  # it went down and up
    for index in INFINITE[1:]:
        for before, after in zip(history[index - 1][3], history[index][3], strict=True):
            assert torch.equal(before, after)  # bit for bit
    assert_run(jitted.step, pure)
    if not jitted.optimizer.defaults.get("capturable"):
        agree(history, Training("cpu", make, clip=clip).run(20))


def both_ways(train):
    """``train(wrap)`` gives the same by itself and both ways."""
    expected = train(lambda step: step)
    for pure in (False, True):
        agree(train(torch_jax.jit(pure=pure)), expected)
    return expected


@pytest.mark.slow
def test_gradients_are_accumulated():
    both_ways(lambda wrap: Training("jax", OPTIMIZERS["sgd"], wrap, accumulate=3).run(8))


def test_the_learning_rate_and_a_schedule_may_change_it():
    def train(wrap):
        training = Training("jax", OPTIMIZERS["adam"])
        schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 3, gamma=0.5)

        def step(x):
            loss = training.one_step(x)
            schedule.step()
            return loss

        training.step = wrap(step)
        history = training.run(5)
        training.optimizer.param_groups[0]["lr"] = 0.01
        return history + training.run(5)

    both_ways(train)


@pytest.mark.slow
def test_two_optimizers_skip_on_their_own():
    def train(wrap):
        a, b = (nn.Parameter(torch.ones(3, device="jax")) for _ in range(2))
        optimizers = [torch.optim.SGD([p], lr=0.5, momentum=0.5) for p in (a, b)]
        scaler = torch.amp.GradScaler("jax", init_scale=8.0)

        def step(x, y):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale((a * x).sum() + (b * y).sum()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()

        step = wrap(step)
        history = []
        for x, y in ((1.0, 2.0), (float("inf"), 1.0), (1.0, float("nan")), (3.0, 1.0), (2.0, 2.0)):
            step(torch.tensor(x, device="jax"), torch.tensor(y, device="jax"))
            history.append((a.detach().cpu().clone(), b.detach().cpu().clone(), scaler.get_scale()))
        return history

    found = both_ways(train)
    assert torch.equal(found[1][0], found[0][0]) and not torch.equal(found[1][1], found[0][1])


@both
@pytest.mark.slow
def test_eager_steps_between_compiled_ones(pure):
    eager = Training("jax", OPTIMIZERS["adam"])
    mixed = Training("jax", OPTIMIZERS["adam"], torch_jax.jit(pure=pure))
    compiled = mixed.step
    calls = iter(range(20))
    mixed.step = lambda x: (mixed.one_step if next(calls) % 3 == 1 else compiled)(x)
    agree(mixed.run(12), eager.run(12))
    assert_run(compiled, pure)


@pytest.mark.slow
def test_hooks_after_a_step_are_skipped_with_it():
    def train(wrap):
        training = Training("jax", OPTIMIZERS["sgd"], wrap)
        average = [p.detach().clone() for p in training.model.parameters()]

        def hook(*_):
            torch._foreach_lerp_(average, [p.detach() for p in training.model.parameters()], 0.5)

        training.optimizer.register_step_post_hook(hook)
        training.run(8)
        return [a.cpu() for a in average]

    both_ways(train)


@pytest.mark.slow
@both
def test_in_an_autocast_region_of_float16(pure):
    def train(wrap):
        torch.manual_seed(0)
        model = nn.Linear(8, 4).to("jax")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)
        scaler = torch.amp.GradScaler("jax", init_scale=2.0**20)  # too large for float16

        @wrap
        def step(x):
            optimizer.zero_grad()
            with torch.autocast("jax", dtype=torch.float16):
                loss = model(x).float().square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        x = torch.linspace(-1, 1, 32, device="jax").reshape(4, 8)
        losses = [step(x).item() for _ in range(12)]
        return losses, scaler.get_scale()

    (jitted, scale), (eager, other) = train(torch_jax.jit(pure=pure)), train(lambda f: f)
    assert scale == other < 2.0**20
    torch.testing.assert_close(jitted, eager, rtol=1e-2, atol=1e-2)
    assert jitted[-1] < jitted[0]


class Counting(torch.optim.SGD):
    """An optimizer that counts in Python."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["count"] = self.state[p].get("count", 0) + 1


ON_HOST = {
    "on the CPU": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "in Python": lambda p: Counting(p, lr=0.1),
}


@pytest.mark.parametrize("make", ON_HOST.values(), ids=ON_HOST)
def test_a_count_on_the_host_is_refused_where_the_device_skips(make):
    agree(Training("jax", make, torch_jax.jit).run(6), Training("jax", make).run(6))
    with pytest.raises(torch_jax.NotTraceableError, match="drop pure=True"):
        Training("jax", make, torch_jax.jit(pure=True)).run(1)


@both
@pytest.mark.slow
def test_a_first_step_that_is_another(pure):
    """Its state is made out of gradients that are infinite here, so that no step is taken."""
    make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5)  # noqa: E731
    eager = Training("jax", make)
    jitted = Training("jax", make, torch_jax.jit(pure=pure))
    if pure:
        before = [p.detach().cpu() for p in jitted.model.parameters()]
        with pytest.raises(torch_jax.NotTraceableError, match="first step of SGD"):
            jitted.run(1)
        agree([p.detach().cpu() for p in jitted.model.parameters()], before)
        jitted = Training("jax", make)
        agree(jitted.run(2), eager.run(2))
        jitted.step = torch_jax.jit(jitted.one_step, pure=True)
    agree(jitted.run(8), eager.run(8))


def test_a_scaler_that_is_switched_off():
    def train(wrap):
        training = Training("jax", OPTIMIZERS["sgd"], wrap)
        training.scaler = torch.amp.GradScaler("jax", enabled=False)
        for _ in range(3):
            training.step(torch.ones(6, 4, dtype=torch.float64, device="jax"))
        return [p.detach().cpu() for p in training.model.parameters()]

    both_ways(train)


@both
def test_state_is_saved_and_loaded_between_compiled_steps(pure):
    training = Training("jax", OPTIMIZERS["sgd"], torch_jax.jit(pure=pure))
    training.run(3)
    state = training.scaler.state_dict()
    assert state["scale"] == 32.0 and state["_growth_tracker"] == 2
    training.scaler.load_state_dict(state | {"scale": 8.0})
    training.step(torch.ones(6, 4, dtype=torch.float64, device="jax"))
    assert training.scaler.get_scale() == 16.0
