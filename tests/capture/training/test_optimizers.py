"""All optimizers and schedules, with numbers that change: the losses and states of plain calls."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as schedules
from torch.optim import swa_utils

import torch_jax
from tests.support.steps import mean_of_squares, mlp, step_of
from torch_jax import DataDependentError, NotTraceableError

pytestmark = pytest.mark.xla_both


def training(make, change=lambda optimizer, call: None, schedule=None, inside=False, calls=10):
    """Steps of an optimizer; numbers change between them, a schedule is part of them or not."""

    def program(compile):
        model = mlp()
        optimizer = make(model.parameters())
        plain, scheduler = step_of(model, optimizer), schedule(optimizer) if schedule else None

        def step(x):
            loss = plain(x)
            if inside:
                scheduler.step()
            return loss

        step = compile(step)
        for call in range(calls):
            change(optimizer, call)
            loss = step(torch.randn(3, 4).to("jax"))
            if scheduler and not inside:
                scheduler.step()
            last = [scheduler.last_epoch, *scheduler.get_last_lr()] if scheduler else []
            yield loss, list(model.parameters()), optimizer, last

    return program


def two_groups(parameters):
    first, *others = parameters
    groups = [{"params": [first], "weight_decay": 0.1}, {"params": others, "lr": 3e-3}]
    return optim.AdamW(groups, lr=1e-2, weight_decay=0.0)


OPTIMIZERS = {
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2),
    "AdamW amsgrad": lambda p: optim.AdamW(p, lr=1e-2, amsgrad=True),
    "AdamW maximize": lambda p: optim.AdamW(p, lr=1e-3, maximize=True),
    "AdamW loop": lambda p: optim.AdamW(p, lr=1e-2, foreach=False),
    "AdamW capturable": lambda p: optim.AdamW(p, lr=1e-2, capturable=True),
    "Adam": lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "Adam fused": lambda p: optim.Adam(p, lr=1e-2, fused=True),
    "Adam tensor lr": lambda p: optim.Adam(p, lr=torch.tensor(1e-2, device="jax")),
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "SGD nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD loop": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "ASGD": optim.ASGD,
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "two groups": two_groups,
    "SGD dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "Rprop": lambda p: optim.Rprop(p, lr=1e-3),
}
# They make their state out of gradients, or of numbers that they multiply.
TWO_KINDS = ("SGD dampening", "Rprop")


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_they_do_eagerly(name, agree):
    agree(training(OPTIMIZERS[name]), 1 + (name in TWO_KINDS), tolerance=1e-4)


CHANGES = {
    "lr": ("AdamW", [0.1, 1, 0.0, 1e-3]),
    "betas": ("AdamW", [(0.8, 0.99), (0.5, 0.9)]),
    "eps": ("AdamW", [1e-3, 1e-6]),
    "weight_decay": ("AdamW", [0.1, 0.3]),
    "momentum": ("SGD momentum", [0.5, 0.95]),
    "alpha": ("RMSprop", [0.5, 0.8]),
}


@pytest.mark.parametrize("number", CHANGES)
def test_numbers_of_an_optimizer_may_change_between_steps(number, agree):
    name, values = CHANGES[number]

    def change(optimizer, call):
        if call >= 4 and call % 2 == 0:
            optimizer.param_groups[0][number] = values[call // 2 - 2]

    agree(training(OPTIMIZERS[name], change, calls=4 + 2 * len(values)), tolerance=1e-4)


class Halving(schedules.LRScheduler):
    def get_lr(self):
        return [base / (1 + self.last_epoch) for base in self.base_lrs]


def warm_up_then_cosine(optimizer):
    warm_up = schedules.LinearLR(optimizer, 0.1, total_iters=5)
    cosine = schedules.CosineAnnealingLR(optimizer, 15)
    return schedules.SequentialLR(optimizer, [warm_up, cosine], milestones=[5])


SCHEDULES = {
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 20),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=30),
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda i: min(1.0, (i + 1) / 10)),
    "SequentialLR": warm_up_then_cosine,
    "StepLR": lambda o: schedules.StepLR(o, 4, 0.5),
    "of the user's own": Halving,
}


@pytest.mark.parametrize("optimizer", ["SGD momentum", "AdamW"])  # whose betas may move as well
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_schedulers(schedule, inside, optimizer, agree):
    program = training(OPTIMIZERS[optimizer], schedule=schedule, inside=inside)
    agree(program, tolerance=1e-4)


def lbfgs(model):
    optimizer = optim.LBFGS(model.parameters(), max_iter=2)

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = mean_of_squares(model(x))
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step


def averaged(model):
    step, decay = step_of(model, optim.SGD(model.parameters(), lr=0.1)), swa_utils
    average = swa_utils.AveragedModel(model, multi_avg_fn=decay.get_ema_multi_avg_fn(0.9))
    return lambda x: (step(x), average.update_parameters(model), [*average.parameters()])


def by(optimizer):
    return lambda model: step_of(model, optimizer(model.parameters()))


WRITES = NotTraceableError, "writes into a CPU tensor"
ON_HOST = {  # they count on the CPU, or look at values
    "Adafactor": (by(lambda p: optim.Adafactor(p, lr=1e-2)), DataDependentError, "is asked for"),
    "Adagrad": (by(lambda p: optim.Adagrad(p, lr=1e-2, lr_decay=0.01)), *WRITES),
    "an average": (averaged, DataDependentError, "on the CPU is asked for"),
    "LBFGS": (
        lbfgs,
        DataDependentError,
        f"{__file__}:{lbfgs.__code__.co_firstlineno + 10}, in step",
    ),
}


@pytest.mark.parametrize("make, error, words", ON_HOST.values(), ids=ON_HOST)
def test_what_counts_on_the_cpu_or_looks_at_values(make, error, words, agree):
    def program(compile):
        model = mlp()
        step = compile(make(model))
        for _ in range(4):
            yield step(torch.randn(3, 4).to("jax")), list(model.parameters())

    with pytest.raises(error, match=words) if agree.pure else nullcontext():
        agree(program, tolerance=1e-4)


class Decaying(optim.SGD):
    """An optimizer whose step sets its own rate and a number of a tuple."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.5
            group["pair"] = (group["pair"][0] * 3.0, 1.0)
            group["weight_decay"] = group["pair"][0]
        super().step(closure)


def decaying(parameter):
    optimizer = Decaying([parameter], lr=0.1, weight_decay=0.01)
    optimizer.param_groups[0]["pair"] = (0.01, 1.0)
    return optimizer


class Counting(optim.SGD):
    """An optimizer that keeps numbers of Python's in its state."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        (weight,) = self.param_groups[0]["params"]
        state = self.state[weight]
        state["step"] = state.get("step", 0) + 1
        state["rate"] = state.get("rate", 1.0) * self.param_groups[0]["lr"]
        weight.sub_(weight.grad, alpha=state["rate"] / state["step"])


class CountingForAll(optim.SGD):
    """An optimizer that keeps a number in its state beside what it keeps for parameters."""

    @torch.no_grad()
    def step(self, closure=None):
        self.state["steps"] = self.state.get("steps", 0) + 1
        super().step(closure)
        (weight,) = self.param_groups[0]["params"]
        weight.div_(self.state["steps"])


def counting_for_all(parameter):
    return CountingForAll([parameter], lr=0.1, momentum=0.9)


def counting(parameter):
    return Counting([parameter], lr=0.5)


def plain(parameter):
    return optim.SGD([parameter], lr=0.1)


def decay(optimizer):
    optimizer.param_groups[0]["lr"] *= 0.5


def nothing(optimizer):
    pass


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "make, before, after",
    [
        (decaying, nothing, nothing),
        (counting, nothing, nothing),
        (counting_for_all, nothing, nothing),
        (plain, decay, nothing),
        (plain, nothing, decay),
    ],
    ids=["in a step", "in a state", "in the whole state", "before a step", "after a step"],
)
def test_numbers_that_python_sets_within_a_call(make, before, after, steps):
    def run(device, wrap):
        weight = nn.Parameter(torch.tensor([1.0, -2.0], device=device))
        optimizer = make(weight)

        def call(x):
            for _ in range(steps):
                optimizer.zero_grad()
                (weight * x).square().sum().backward()
                before(optimizer)
                optimizer.step()
                after(optimizer)

        call = wrap(call)
        for k in range(4):
            call(torch.tensor([1.0, 0.5 + k], device=device))
            yield weight.detach().to("cpu", copy=True), optimizer.param_groups[0]["lr"]

    expected = list(run("cpu", lambda function: function))
    with pytest.warns(UserWarning, match="sets (its|the) '"):
        torch.testing.assert_close(list(run("jax", torch_jax.jit(pure=True))), expected)
