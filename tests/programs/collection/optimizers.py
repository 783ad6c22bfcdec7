"""Optimizers: groups edited, state cleared or loaded, swapped, several at once."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.programs.training import adam, sgd, step_of, trained, x_of
from tests.programs.writing import Bag, linear, program, t


@program
def the_learning_rate_is_a_tensor(compile):
    def change(k, s):
        s.opt.param_groups[0]["lr"] = torch.tensor(0.01 * (k + 1))

    yield from trained(compile, lambda p: torch.optim.SGD(p, lr=torch.tensor(0.01)), change)


@program
def numbers_of_groups_become_others(compile):
    def change(k, s):
        group = s.opt.param_groups[0]
        group["momentum"] = (0.9, 0.0, 0.5)[k % 3]
        group["weight_decay"] = 0.1 * (k % 2)

    yield from trained(compile, sgd, change, calls=9)


@program
def flags_of_groups_change(compile):
    def change(k, s):
        group = s.opt.param_groups[0]
        group["nesterov"], group["maximize"] = k % 3 == 1, k % 2 == 1

    yield from trained(compile, sgd, change, calls=8)


@program
def betas_change(compile):
    def change(k, s):
        s.opt.param_groups[0]["betas"] = (0.9 - 0.1 * k, 0.99)

    yield from trained(compile, adam, change)


@program
def amsgrad_is_switched_on(compile):
    def change(k, s):
        if k == 3:
            s.opt.param_groups[0]["amsgrad"] = True
            for p in s.model.parameters():
                s.opt.state[p]["max_exp_avg_sq"] = torch.zeros_like(p)

    yield from trained(compile, adam, change)


@program
def the_state_of_one_parameter_is_deleted(compile):
    def change(k, s):
        if k % 3 == 2:
            del s.opt.state[s.model.weight]

    yield from trained(compile, sgd, change, calls=8)


@program
def the_steps_of_adam_are_set_back(compile):
    def change(k, s):
        if k == 3:
            for state in s.opt.state.values():
                state["step"] = torch.tensor(0.0)
        if k == 5:
            for state in s.opt.state.values():
                state["step"] += 10

    yield from trained(compile, adam, change, calls=8)


@program
def model_and_optimizer_go_back_to_a_checkpoint(compile):
    kept = {}

    def change(k, s):
        if k == 2:
            kept["model"] = copy.deepcopy(s.model.state_dict())
            kept["opt"] = copy.deepcopy(s.opt.state_dict())
        if k == 4:
            s.model.load_state_dict(kept["model"])
            s.opt.load_state_dict(kept["opt"])

    yield from trained(compile, adam, change, calls=8)


@program
def a_group_is_taken_away(compile):
    def make(parameters):
        weight, bias = parameters
        return torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": 0.1}], lr=0.01)

    def change(k, s):
        if k == 3:
            s.opt.param_groups.pop()
        if k == 5:
            s.opt.param_groups[0]["params"].append(s.model.bias)

    yield from trained(compile, make, change, calls=8)


@program
def groups_change_their_order(compile):
    def make(parameters):
        weight, bias = parameters
        return torch.optim.SGD([{"params": [weight], "lr": 0.01}, {"params": [bias], "lr": 0.1}])

    def change(k, s):
        s.opt.param_groups.reverse()

    yield from trained(compile, make, change)


@program
def a_parameter_is_frozen(compile):
    def change(k, s):
        s.model.weight.requires_grad_(k % 3 != 1)

    yield from trained(compile, sgd, change, calls=8)


@program
def a_parameter_of_a_group_is_replaced(compile):
    def change(k, s):
        if k == 3:
            s.model.weight = nn.Parameter(s.model.weight.detach() * 2)
            s.opt.param_groups[0]["params"][0] = s.model.weight

    yield from trained(compile, adam, change)


@program
def optimizers_that_change_their_own_groups(compile):
    class Decaying(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                group["lr"] *= 0.9
            super().step(closure)

    class Afterwards(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                group["weight_decay"] = group["lr"] / 2
                group["momentum"] = 0.5 + group["momentum"] / 3

    class Counting(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            numbers = {"lr": lr, "n": 0, "total": 0.0, "new": True, "betas": (0.9, 0.5)}
            super().__init__(parameters, numbers)

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                rate = group["lr"] * min(1.0, (group["n"] + 1) / 3)
                group["total"] += rate**2 if group["new"] else rate
                for p in group["params"]:
                    p.mul_(group["betas"][0]).add_(p.grad, alpha=-rate / group["total"] / 100)
                group["betas"] = (group["betas"][0] * group["betas"][1], 0.75)
                group["n"] += 1
                group["new"] = False

    for kind in (Decaying, Afterwards, Counting):
        s = Bag(model=linear())
        s.opt = kind(s.model.parameters(), lr=0.01)
        once = step_of(s.model, s)
        f = compile(lambda x: (once(x), once(x)))
        for k in range(6):
            yield f(x_of(k)), list(s.model.parameters()), s.opt
            if k == 3:
                s.opt.param_groups[0]["lr"] = 0.02


@program
def a_gradient_is_missing_at_first(compile):
    extra = nn.Parameter(t(1))
    s = Bag(on=False, model=linear())
    s.opt = sgd([*s.model.parameters(), extra])

    def step(x):
        s.opt.zero_grad()
        y = s.model(x) + (extra if s.on else 0)
        y.square().sum().backward()
        s.opt.step()
        return y.detach()

    f = compile(step)
    for k in range(8):
        yield f(x_of(k)), extra, s.opt
        s.on = k in (2, 3, 5)
