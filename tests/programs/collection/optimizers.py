"""Optimizers: groups edited, state cleared or loaded, parameters replaced."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.programs.training import adam, sgd, step_of, trained, x_of
from tests.programs.writing import Bag, linear, program, t


def _groups(parameters):
    weight, bias = parameters
    return torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": 0.1}], lr=0.01)


def _numbers(k, s):
    s.opt.param_groups[0].update(
        momentum=(0.9, 0.0, 0.5)[k % 3],
        weight_decay=0.1 * (k % 2),
        nesterov=k % 6 == 3,
        maximize=k % 4 == 1,
        lr=0.01 if k % 5 else torch.tensor(0.02),
    )


def _betas(k, s):
    s.opt.param_groups[0]["betas"] = (0.9 - 0.1 * k, 0.99)
    if k == 3:
        s.opt.param_groups[0]["amsgrad"] = True
        for p in s.model.parameters():
            s.opt.state[p]["max_exp_avg_sq"] = torch.zeros_like(p)


def _steps_set_back(k, s):
    for state in s.opt.state.values():
        if k == 3:
            state["step"] = torch.tensor(0.0)
        if k == 5:
            state["step"] += 10


def _back_to_a_checkpoint(k, s):
    parts = (s.model, s.opt)
    if k == 2:
        s.kept = [copy.deepcopy(part.state_dict()) for part in parts]
    if k == 4:
        for part, state in zip(parts, s.kept, strict=True):
            part.load_state_dict(state)


def _a_state_is_deleted(k, s):
    if k % 3 == 2:
        del s.opt.state[s.model.weight]


def _groups_are_moved(k, s):
    if k == 2:
        s.opt.param_groups.reverse()
    if k == 3:
        s.opt.param_groups.pop(0)
    if k == 5:
        s.opt.param_groups[0]["params"].append(s.model.bias)


def _a_parameter_is_replaced(k, s):
    if k == 3:
        s.model.weight = nn.Parameter(s.model.weight.detach() * 2)
        s.opt.param_groups[0]["params"][0] = s.model.weight
    s.model.bias.requires_grad_(k % 3 != 1)


CHANGED = {
    "numbers_of_groups_become_others": (sgd, _numbers),
    "betas_change_and_amsgrad_is_switched_on": (adam, _betas),
    "the_steps_of_adam_are_set_back": (adam, _steps_set_back),
    "model_and_optimizer_go_back_to_a_checkpoint": (adam, _back_to_a_checkpoint),
    "the_state_of_one_parameter_is_deleted": (sgd, _a_state_is_deleted),
    "groups_are_turned_and_taken_away": (_groups, _groups_are_moved),
    "a_parameter_of_a_group_is_replaced": (adam, _a_parameter_is_replaced),
}
for _name, _given in CHANGED.items():
    trained(_name, *_given)


@program
def optimizers_that_change_their_own_groups(compile):
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

    for kind in (Afterwards, Counting):
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
