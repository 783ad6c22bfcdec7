"""Gradients that are accumulated and scaled, schedulers, several optimizers."""

from __future__ import annotations

import copy
import math

import torch
from torch.optim import lr_scheduler

from tests.programs.training import adam, sgd, step_of, x_of
from tests.programs.writing import Bag, linear, program


@program
def gradients_are_accumulated_zeroed_or_none(compile):
    s = Bag(model=linear(), n=0)
    s.opt = sgd(s.model.parameters())

    def step(x):
        (s.model(x).square().sum() / 3).backward()
        s.n += 1
        if s.n % 3 == 0:
            s.opt.step()
            s.opt.zero_grad(set_to_none=s.n % 2 == 0)
        return s.model(x).detach()

    f = compile(step)
    for k in range(10):
        yield f(x_of(k)), s.opt, [p.grad for p in s.model.parameters()]


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
def schedulers_inside_and_one_that_looks_at_the_loss(compile):
    s = Bag(model=linear())
    s.opt = sgd(s.model.parameters())
    s.inside = lr_scheduler.StepLR(s.opt, 2, 0.5)
    plateau = lr_scheduler.ReduceLROnPlateau(s.opt, patience=1, factor=0.5)
    step = step_of(s.model, s)

    def both(x):
        loss = step(x)
        s.inside.step()
        return loss

    f = compile(both)
    for k in range(9):
        loss = f(x_of(k))
        plateau.step(loss)
        yield loss, s.opt, s.inside
        if k == 4:
            s.inside = lr_scheduler.CosineAnnealingLR(s.opt, 4)


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
