"""Helpers of programs of training: a step, an input, optimizers."""

from __future__ import annotations

import torch

from tests.programs.writing import Bag, linear, t


def step_of(model, holder, loss_of=lambda y: y.square().sum()):
    def step(x):
        holder.opt.zero_grad()
        loss = loss_of(model(x))
        loss.backward()
        holder.opt.step()
        return loss.detach()

    return step


def x_of(k):
    return t(0.1 * k + 0.1, 0.3, -0.2)  # small, so that no step goes astray


def trained(compile, make, change=lambda k, s: None, calls=7, model=None):
    """Steps of an optimizer, with a change after each."""
    s = Bag(model=model or linear())
    s.opt = make(s.model.parameters())
    f = compile(step_of(s.model, s))
    for k in range(calls):
        yield f(x_of(k)), list(s.model.parameters()), s.opt
        change(k, s)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)
