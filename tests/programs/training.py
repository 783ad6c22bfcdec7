"""Helpers of programs of training: a step, an input, optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.programs.writing import Bag, Compile, enter, linear, t


def step_of(model, holder):
    def step(x):
        holder.opt.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        holder.opt.step()
        return loss.detach()

    return step


def x_of(k):
    return t(0.1 * k + 0.1, 0.3, -0.2)  # small, so that no step goes astray


def trained(name: str, make: Callable[..., Any], change: Callable[[int, Bag], None]) -> None:
    """Enter a program of steps of an optimizer, with a change after each."""

    def program(compile: Compile):
        s = Bag(model=linear())
        s.opt = make(s.model.parameters())
        f = compile(step_of(s.model, s))
        for k in range(8):
            yield f(x_of(k)), list(s.model.parameters()), s.opt
            change(k, s)

    enter(name, program, change)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)
