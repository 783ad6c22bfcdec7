"""Gradients kept, clipped and accumulated; schedulers, averages, scalers, several optimizers."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.programs.training import adam, sgd, step_of, trained, x_of
from tests.programs.writing import Bag, linear, program, t


@program
def gradients_are_zeroed_or_none(compile):
    s = Bag(model=linear(), none=True)
    s.opt = sgd(s.model.parameters())

    def step(x):
        s.model(x).square().sum().backward()
        s.opt.step()
        s.opt.zero_grad(set_to_none=s.none)
        return s.model(x).detach()

    f = compile(step)
    for k in range(8):
        yield f(x_of(k)), s.opt, [p.grad for p in s.model.parameters()]
        s.none = k % 3 == 0


@program
def gradients_are_accumulated(compile):
    s = Bag(model=linear(), n=0)
    s.opt = sgd(s.model.parameters())

    def step(x):
        (s.model(x).square().sum() / 3).backward()
        s.n += 1
        if s.n % 3 == 0:
            s.opt.step()
            s.opt.zero_grad()
        return s.model.weight.sum().detach()

    f = compile(step)
    for k in range(10):
        yield f(x_of(k)), [p.grad for p in s.model.parameters()]


@program
def a_scheduler_inside(compile):
    s = Bag(model=linear())
    s.opt = sgd(s.model.parameters())
    schedule = lr_scheduler.StepLR(s.opt, 2, 0.5)
    step = step_of(s.model, s)

    def both(x):
        loss = step(x)
        schedule.step()
        return loss

    f = compile(both)
    for k in range(9):
        yield f(x_of(k)), s.opt, schedule


@program
def a_scheduler_is_swapped(compile):
    s = Bag(model=linear())
    s.opt = sgd(s.model.parameters())
    s.schedule = lr_scheduler.ExponentialLR(s.opt, 0.5)
    step = step_of(s.model, s)

    def both(x):
        loss = step(x)
        s.schedule.step()
        return loss, s.schedule.get_last_lr()

    f = compile(both)
    for k in range(9):
        yield f(x_of(k)), s.opt
        if k == 4:
            s.schedule = lr_scheduler.CosineAnnealingLR(s.opt, 4)


@program
def rates_are_set_inside(compile):
    setters = (
        lambda group, k: group.update(lr=0.03),
        lambda group, k: group.update(lr=0.03 * k),
        lambda group, k: group.update(lr=group["lr"] * 0.5, momentum=1 - group["lr"]),
        lambda group, k: group.update(lr=group["initial"] * math.cos(k)),
        lambda group, k: group.update(lr=group["lr"] / 2 if group["lr"] > 0.008 else k / 100),
    )
    for set_rate in setters:
        s = Bag(model=linear())
        s.opt = sgd(s.model.parameters())
        group = s.opt.param_groups[0]
        group["initial"] = 0.02
        step = step_of(s.model, s)

        def both(x, k):
            set_rate(group, k)
            return step(x)

        f = compile(both)
        for k in range(6):
            yield f(x_of(k), 1 / (k + 1)), list(s.model.parameters()), s.opt
            if k == 2:
                group["lr"] = 0.05
            if k == 3:
                group["initial"] = 0.01


@program
def a_scheduler_that_calls_a_function(compile):
    s = Bag(model=linear(), scale=1.0)
    s.opt = sgd(s.model.parameters())
    schedule = lr_scheduler.LambdaLR(s.opt, lambda epoch: s.scale / (epoch + 1))
    step = step_of(s.model, s)

    def both(x):
        loss = step(x)
        schedule.step()
        return loss

    f = compile(both)
    for k in range(8):
        yield f(x_of(k)), s.opt
        s.scale = 1.0 + k % 2


@program
def a_scheduler_that_looks_at_the_loss(compile):
    s = Bag(model=linear())
    s.opt = sgd(s.model.parameters())
    schedule = lr_scheduler.ReduceLROnPlateau(s.opt, patience=1, factor=0.5)
    f = compile(step_of(s.model, s))
    for k in range(8):
        loss = f(x_of(k))
        schedule.step(loss)
        yield loss, s.opt


@program
def lbfgs_with_a_closure(compile):
    w = nn.Parameter(t(1))
    opt = torch.optim.LBFGS([w], lr=0.1, max_iter=2)

    def step(x):
        def closure():
            opt.zero_grad()
            loss = (w * x - 1).square().sum()
            loss.backward()
            return loss

        return opt.step(closure).detach()

    f = compile(step)
    for _ in range(6):
        yield f(t(1)), w


@program
def two_optimizers_in_turn(compile):
    s = Bag(a=linear(), b=linear(), n=0)
    s.one, s.two = sgd(s.a.parameters()), adam(s.b.parameters())

    def step(x):
        for opt in (s.one, s.two):
            opt.zero_grad()
        loss = s.b(s.a(x)).square().sum()
        loss.backward()
        (s.one if s.n % 2 else s.two).step()
        s.n += 1
        return loss.detach()

    f = compile(step)
    for k in range(8):
        yield f(x_of(k)), s.one, s.two


@program
def an_optimizer_of_the_users_own(compile):
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.01})
            self.steps = 0

        @torch.no_grad()
        def step(self):
            self.steps += 1
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        state = self.state[p]
                        state["n"] = state.get("n", 0) + 1
                        p.add_(p.grad, alpha=-group["lr"] / state["n"])

    yield from trained(compile, Plain, lambda k, s: s.opt.state.clear() if k == 4 else None)


@program
def other_optimizers(compile):
    for kind in (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam):
        yield from trained(compile, lambda p, kind=kind: kind(p, lr=0.01), calls=4)


@program
def a_scaler_of_gradients(compile):
    s = Bag(model=linear())
    s.opt = sgd(s.model.parameters())
    scaler = torch.amp.GradScaler("jax", init_scale=4.0, growth_interval=2)

    def step(x):
        s.opt.zero_grad()
        loss = s.model(x).square().sum()
        scaler.scale(loss).backward()
        scaler.step(s.opt)
        scaler.update()
        return loss.detach()

    f = compile(step)
    for k in range(7):
        yield f(x_of(k) if k != 3 else x_of(k) / 0), scaler.get_scale(), s.model.bias


@program
def deep_copies_go_their_own_way(compile):
    s = Bag(model=linear())
    s.opt = sgd(s.model.parameters())
    f = compile(step_of(s.model, s))
    for k in range(3):
        yield f(x_of(k)), s.opt
    other = copy.deepcopy(s)
    g = compile(step_of(other.model, other))
    for k in range(4):
        yield f(x_of(k)), g(x_of(k)), s.opt, other.opt
