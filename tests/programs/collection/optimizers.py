"""Optimizers and schedulers: groups edited, state cleared or loaded, swapped, several at once."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from tests.programs.writing import Bag, linear, program, t


def _step_of(model, holder, loss_of=lambda y: y.square().sum()):
    def step(x):
        holder.opt.zero_grad()
        loss = loss_of(model(x))
        loss.backward()
        holder.opt.step()
        return loss.detach()

    return step


def _trained(compile, make, change=lambda k, s: None, calls=7, model=None):
    """Steps of an optimizer, with a change after each."""
    s = Bag(model=model or linear())
    s.opt = make(s.model.parameters())
    f = compile(_step_of(s.model, s))
    for k in range(calls):
        yield f(t(k + 1)), list(s.model.parameters()), s.opt
        change(k, s)


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


@program
def sgd_as_ever(compile):
    yield from _trained(compile, _sgd)


@program
def adam_as_ever(compile):
    yield from _trained(compile, _adam)


@program
def the_learning_rate_is_set(compile):
    def change(k, s):
        s.opt.param_groups[0]["lr"] = 0.01 * (k + 1)

    yield from _trained(compile, _sgd, change)


@program
def the_learning_rate_is_a_numpy_number(compile):
    rates = np.linspace(0.001, 0.01, 8)

    def change(k, s):
        s.opt.param_groups[0]["lr"] = rates[k]

    yield from _trained(compile, _sgd, change)


@program
def the_learning_rate_is_a_tensor(compile):
    def change(k, s):
        s.opt.param_groups[0]["lr"] = torch.tensor(0.01 * (k + 1))

    yield from _trained(compile, lambda p: torch.optim.SGD(p, lr=torch.tensor(0.01)), change)


@program
def numbers_of_groups_become_others(compile):
    def change(k, s):
        group = s.opt.param_groups[0]
        group["momentum"] = (0.9, 0.0, 0.5)[k % 3]
        group["weight_decay"] = 0.1 * (k % 2)

    yield from _trained(compile, _sgd, change, calls=9)


@program
def flags_of_groups_change(compile):
    def change(k, s):
        group = s.opt.param_groups[0]
        group["nesterov"], group["maximize"] = k % 3 == 1, k % 2 == 1

    yield from _trained(compile, _sgd, change, calls=8)


@program
def betas_change(compile):
    def change(k, s):
        s.opt.param_groups[0]["betas"] = (0.9 - 0.1 * k, 0.99)

    yield from _trained(compile, _adam, change)


@program
def amsgrad_is_switched_on(compile):
    def change(k, s):
        if k == 3:
            s.opt.param_groups[0]["amsgrad"] = True
            for p in s.model.parameters():
                s.opt.state[p]["max_exp_avg_sq"] = torch.zeros_like(p)

    yield from _trained(compile, _adam, change)


@program
def the_state_is_cleared(compile):
    def change(k, s):
        if k % 3 == 2:
            s.opt.state.clear()

    yield from _trained(compile, _sgd, change, calls=8)


@program
def the_state_of_adam_is_cleared(compile):
    def change(k, s):
        if k == 3:
            s.opt.state.clear()

    yield from _trained(compile, _adam, change)


@program
def the_state_of_one_parameter_is_deleted(compile):
    def change(k, s):
        if k % 3 == 2:
            del s.opt.state[s.model.weight]

    yield from _trained(compile, _sgd, change, calls=8)


@program
def the_momentum_is_zeroed(compile):
    def change(k, s):
        if k == 3:
            s.opt.state[s.model.weight]["momentum_buffer"].zero_()
        if k == 5:
            s.opt.state[s.model.weight]["momentum_buffer"] = torch.zeros_like(s.model.weight)

    yield from _trained(compile, _sgd, change, calls=8)


@program
def the_momentum_is_set_to_none(compile):
    def change(k, s):
        if k == 3:
            s.opt.state[s.model.weight]["momentum_buffer"] = None

    yield from _trained(compile, _sgd, change)


@program
def the_steps_of_adam_are_set_back(compile):
    def change(k, s):
        if k == 3:
            for state in s.opt.state.values():
                state["step"] = torch.tensor(0.0)
        if k == 5:
            for state in s.opt.state.values():
                state["step"] += 10

    yield from _trained(compile, _adam, change, calls=8)


@program
def the_state_is_loaded(compile):
    kept = {}

    def change(k, s):
        if k == 1:
            kept["state"] = copy.deepcopy(s.opt.state_dict())
        if k in (3, 5):
            s.opt.load_state_dict(kept["state"])

    yield from _trained(compile, _sgd, change, calls=8)


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

    yield from _trained(compile, _adam, change, calls=8)


@program
def another_optimizer_takes_over(compile):
    def change(k, s):
        if k == 3:
            s.opt = _adam(s.model.parameters())

    yield from _trained(compile, _sgd, change)


@program
def a_new_optimizer_of_the_same_kind(compile):
    def change(k, s):
        if k % 3 == 2:
            s.opt = _sgd(s.model.parameters())

    yield from _trained(compile, _sgd, change, calls=8)


@program
def a_group_is_added(compile):
    extra = nn.Parameter(t(1))

    class Shifted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + extra

    def change(k, s):
        if k == 3:
            s.opt.add_param_group({"params": [extra], "lr": 0.5})

    for out in _trained(compile, _sgd, change, model=Shifted(3, 3).to("jax")):
        yield out, extra


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

    yield from _trained(compile, make, change, calls=8)


@program
def groups_change_their_order(compile):
    def make(parameters):
        weight, bias = parameters
        return torch.optim.SGD([{"params": [weight], "lr": 0.01}, {"params": [bias], "lr": 0.1}])

    def change(k, s):
        s.opt.param_groups.reverse()

    yield from _trained(compile, make, change)


@program
def a_parameter_is_frozen(compile):
    def change(k, s):
        s.model.weight.requires_grad_(k % 3 != 1)

    yield from _trained(compile, _sgd, change, calls=8)


@program
def a_parameter_is_replaced(compile):
    def change(k, s):
        if k == 3:
            s.model.bias = nn.Parameter(t(5))
        if k == 5:
            s.opt = _sgd(s.model.parameters())

    yield from _trained(compile, _sgd, change, calls=8)


@program
def a_gradient_is_missing_at_first(compile):
    extra = nn.Parameter(t(1))
    s = Bag(on=False, model=linear())
    s.opt = _sgd([*s.model.parameters(), extra])

    def step(x):
        s.opt.zero_grad()
        y = s.model(x) + (extra if s.on else 0)
        y.square().sum().backward()
        s.opt.step()
        return y.detach()

    f = compile(step)
    for k in range(8):
        yield f(t(k + 1)), extra, s.opt
        s.on = k in (2, 3, 5)


@program
def gradients_are_zeroed_or_none(compile):
    s = Bag(model=linear(), none=True)
    s.opt = _sgd(s.model.parameters())

    def step(x):
        s.model(x).square().sum().backward()
        s.opt.step()
        s.opt.zero_grad(set_to_none=s.none)
        return s.model(x).detach()

    f = compile(step)
    for k in range(8):
        yield f(t(k + 1)), s.opt, [p.grad for p in s.model.parameters()]
        s.none = k % 3 == 0


@program
def gradients_are_accumulated(compile):
    s = Bag(model=linear(), n=0)
    s.opt = _sgd(s.model.parameters())

    def step(x):
        (s.model(x).square().sum() / 3).backward()
        s.n += 1
        if s.n % 3 == 0:
            s.opt.step()
            s.opt.zero_grad()
        return s.model.weight.sum().detach()

    f = compile(step)
    for k in range(10):
        yield f(t(k + 1)), [p.grad for p in s.model.parameters()]


@program
def gradients_are_clipped_by_a_changing_norm(compile):
    s = Bag(model=linear(), norm=1.0)
    s.opt = _sgd(s.model.parameters())

    def step(x):
        s.opt.zero_grad()
        s.model(x).square().sum().backward()
        total = nn.utils.clip_grad_norm_(s.model.parameters(), s.norm)
        s.opt.step()
        return total

    f = compile(step)
    for k in range(7):
        yield f(t(k + 1)), list(s.model.parameters())
        s.norm = 0.5 * (k + 1)


@program
def a_scheduler_inside(compile):
    s = Bag(model=linear())
    s.opt = _sgd(s.model.parameters())
    schedule = lr_scheduler.StepLR(s.opt, 2, 0.5)
    step = _step_of(s.model, s)

    def both(x):
        loss = step(x)
        schedule.step()
        return loss

    f = compile(both)
    for k in range(9):
        yield f(t(k + 1)), s.opt, schedule


@program
def a_scheduler_is_swapped(compile):
    s = Bag(model=linear())
    s.opt = _sgd(s.model.parameters())
    s.schedule = lr_scheduler.ExponentialLR(s.opt, 0.5)
    step = _step_of(s.model, s)

    def both(x):
        loss = step(x)
        s.schedule.step()
        return loss, s.schedule.get_last_lr()

    f = compile(both)
    for k in range(9):
        yield f(t(k + 1)), s.opt
        if k == 4:
            s.schedule = lr_scheduler.CosineAnnealingLR(s.opt, 4)


@program
def a_scheduler_that_calls_a_function(compile):
    s = Bag(model=linear(), scale=1.0)
    s.opt = _sgd(s.model.parameters())
    schedule = lr_scheduler.LambdaLR(s.opt, lambda epoch: s.scale / (epoch + 1))
    step = _step_of(s.model, s)

    def both(x):
        loss = step(x)
        schedule.step()
        return loss

    f = compile(both)
    for k in range(8):
        yield f(t(k + 1)), s.opt
        s.scale = 1.0 + k % 2


@program
def a_scheduler_that_looks_at_the_loss(compile):
    s = Bag(model=linear())
    s.opt = _sgd(s.model.parameters())
    schedule = lr_scheduler.ReduceLROnPlateau(s.opt, patience=1, factor=0.5)
    f = compile(_step_of(s.model, s))
    for k in range(8):
        loss = f(t(k + 1))
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
def sgd_with_a_closure(compile):
    s = Bag(model=linear(), n=0)
    s.opt = _sgd(s.model.parameters())

    def step(x):
        def closure():
            s.n += 1
            s.opt.zero_grad()
            loss = s.model(x).square().sum()
            loss.backward()
            return loss

        return s.opt.step(closure).detach()

    f = compile(step)
    for k in range(7):
        yield f(t(k + 1)), s.n, s.opt


@program
def a_moving_average_of_a_model(compile):
    s = Bag(model=linear())
    s.opt = _sgd(s.model.parameters())
    average = swa_utils.AveragedModel(s.model)
    step = _step_of(s.model, s)

    def both(x):
        loss = step(x)
        average.update_parameters(s.model)
        return loss

    f = compile(both)
    for k in range(6):
        yield f(t(k + 1)), list(average.parameters()), average.n_averaged.cpu()


@program
def an_average_of_the_users_own(compile):
    s = Bag(model=linear(), decay=0.9)
    s.opt = _sgd(s.model.parameters())
    shadow = {n: p.detach().clone() for n, p in s.model.named_parameters()}
    step = _step_of(s.model, s)

    def both(x):
        loss = step(x)
        for name, p in s.model.named_parameters():
            shadow[name] = shadow[name] * s.decay + p.detach() * (1 - s.decay)
        return loss

    f = compile(both)
    for k in range(8):
        yield f(t(k + 1)), shadow
        if k == 4:
            s.decay = 0.5
        if k == 5:
            shadow["bias"] = t(0)


@program
def two_optimizers_in_turn(compile):
    s = Bag(a=linear(), b=linear(), n=0)
    s.one, s.two = _sgd(s.a.parameters()), _adam(s.b.parameters())

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
        yield f(t(k + 1)), s.one, s.two


@program
def hooks_of_optimizers(compile):
    s = Bag(model=linear(), seen=0)
    s.opt = _sgd(s.model.parameters())

    def count(*args):
        s.seen += 1

    f = compile(_step_of(s.model, s))
    handle = None
    for k in range(8):
        yield f(t(k + 1)), s.seen
        if k == 2:
            handle = s.opt.register_step_post_hook(count)
        if k == 5:
            handle.remove()


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

    yield from _trained(compile, Plain, lambda k, s: s.opt.state.clear() if k == 4 else None)


@program
def other_optimizers(compile):
    for kind in (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam):
        yield from _trained(compile, lambda p, kind=kind: kind(p, lr=0.01), calls=4)


@program
def a_scaler_of_gradients(compile):
    s = Bag(model=linear())
    s.opt = _sgd(s.model.parameters())
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
        yield f(t(k + 1) if k != 3 else t(float("inf"))), scaler.get_scale(), s.model.bias


@program
def deep_copies_go_their_own_way(compile):
    s = Bag(model=linear())
    s.opt = _sgd(s.model.parameters())
    f = compile(_step_of(s.model, s))
    for k in range(3):
        yield f(t(k + 1)), s.opt
    other = copy.deepcopy(s)
    g = compile(_step_of(other.model, other))
    for k in range(4):
        yield f(t(k + 1)), g(t(k + 1)), s.opt, other.opt
