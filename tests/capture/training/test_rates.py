"""Training steps that compute their own numbers: learning rates, weights and decays by a count."""

from __future__ import annotations

import dataclasses
import math

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


def test_a_step_with_all_of_it_is_traced_a_few_times():
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
    torch.testing.assert_close([p.cpu() for p in trainer.average], plain.average)
    assert step.explain().traces <= 6


def _rate(optimizer):
    rate = optimizer.param_groups[0]["lr"]
    assert type(rate) is float
    return rate


def _constant(group, scale):
    group["lr"] = 0.1


def _of_the_argument(group, scale):
    group["lr"] = 0.1 * scale


def _of_itself(group, scale):
    group["lr"] *= 0.5
    group["momentum"] = 1 - group["lr"]


def _of_another(group, scale):
    group["lr"] = group["initial"] * math.cos(scale)


def _looked_at(group, scale):
    group["lr"] = group["lr"] / 2 if group["lr"] > 0.3 else scale


SETTERS = (_constant, _of_the_argument, _of_itself, _of_another, _looked_at)


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("setter", SETTERS, ids=lambda f: f.__name__)
def test_rates_that_the_step_sets_are_never_stale(setter, changing):
    def train(device, wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        for group in optimizer.param_groups:
            group["initial"] = 0.2

        def step(x, scale):
            model(x).square().mean().backward()
            for group in optimizer.param_groups:
                setter(group, scale)
            optimizer.step()
            optimizer.zero_grad()

        step, rates = wrap(step), []
        for index in range(7):
            if index == 3:
                optimizer.param_groups[0]["lr"] = 0.75
            if index == 5:
                optimizer.param_groups[0]["initial"] = 0.3
            step(torch.ones(4, 3, device=device), 1 / (index + 1) if changing else 1.0)
            rates.append(_rate(optimizer))
        return rates, [p.detach().cpu() for p in model.parameters()]

    expected, parameters = train("cpu", lambda f: f)
    rates, found = train("jax", torch_jax.jit)
    assert rates == expected
    torch.testing.assert_close(found, parameters)


def test_elements_of_dicts_that_change_become_inputs():
    settings = {"scale": 0.5, "power": 2, "name": "mean"}

    @torch_jax.jit
    def step(x):
        settings["seen"] = settings.get("seen", 0) + 1
        result = (x * settings["scale"]) ** settings["power"]
        return result.mean() if settings["name"] == "mean" else result.sum()

    x = torch.full((3,), 2.0)
    for index in range(8):
        settings["scale"] = 0.5 + index
        if index == 6:
            settings["name"] = "sum"
        powers = (x * settings["scale"]) ** settings["power"]
        expected = powers.mean() if index < 6 else powers.sum()
        torch.testing.assert_close(step(x.to("jax")).cpu(), expected)
        assert settings["seen"] == index + 1
    assert {type(v) for v in settings.values()} == {float, int, str}
    assert step.explain().traces <= 4


CLASSES = (int, float)


def _by_a_tuple(x, scale):
    return x * scale if isinstance(scale, CLASSES) else x


def _by_a_match(x, scale):
    match scale:
        case float():
            return x * scale
        case _:
            return x


def _by_its_class(x, scale):
    return x * scale if scale.__class__ in (float, str) else x


def _in_an_inner_function(x, scale):
    def scaled():
        return x * scale if issubclass(type(scale), float) else x

    return scaled()


@pytest.mark.parametrize(
    "function", [_by_a_tuple, _by_a_match, _by_its_class, _in_an_inner_function]
)
def test_code_that_tells_floats_from_others_gets_floats(function):
    compiled = torch_jax.jit(function)
    for scale in (0.5, 0.25, 0.125):
        assert compiled(torch.ones(2, device="jax"), scale).tolist() == [scale] * 2
    told = compiled.explain()
    assert told.traces == 3 or told.recorded == 3


# --- optimizers that change their own groups ------------------------------------------------------


class Decaying(torch.optim.SGD):
    """Its rate goes down at each step."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.9
        return super().step(closure)


class Counting(torch.optim.Optimizer):
    """Counts its steps, sums up its weights and warms up, as optimizers without schedules do."""

    def __init__(self, params, lr):
        super().__init__(
            params, {"lr": lr, "k": 0, "weights": 0.0, "is_new": True, "betas": (0.9, 0.5)}
        )

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            rate = group["lr"] * min(1.0, (group["k"] + 1) / 3)
            weight = rate**2 if group["is_new"] else rate
            group["weights"] += weight
            for p in group["params"]:
                p.mul_(group["betas"][0]).add_(p.grad, alpha=-rate * (weight / group["weights"]))
            group["betas"] = (group["betas"][0] * group["betas"][1], 0.75)
            group["k"] += 1
            group["is_new"] = False


class Afterwards(torch.optim.SGD):
    """Changes its mind when a step is done."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["weight_decay"] = group["lr"] / 2
            group["momentum"] = 0.5 + group["momentum"] / 3


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("kind", [Decaying, Counting, Afterwards])
def test_optimizers_that_change_their_own_groups(kind, steps):
    def train(device, wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).double().to(device)
        optimizer = kind(model.parameters(), lr=0.2)

        def step(x):
            for _ in range(steps):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        step, groups = wrap(step), []
        for index in range(7):
            if index == 4:
                optimizer.param_groups[0]["lr"] = 0.5
            step(torch.ones(4, 3, dtype=torch.float64, device=device))
            groups.append({k: v for k, v in optimizer.param_groups[0].items() if k != "params"})
        return groups, [p.detach().cpu() for p in model.parameters()]

    expected, parameters = train("cpu", lambda f: f)
    groups, found = train("jax", torch_jax.jit)
    assert groups == expected
    assert [list(map(type, g.values())) for g in groups] == [
        list(map(type, g.values())) for g in expected
    ]
    torch.testing.assert_close(found, parameters)
