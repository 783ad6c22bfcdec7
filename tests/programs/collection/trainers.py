"""A trainer of which anything changes between the steps, in a random order."""

from __future__ import annotations

import copy
import random

import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.programs.writing import Bag, linear, m, program


def _trainer():
    s = Bag(model=nn.Sequential(linear(), nn.Dropout(0.2), linear()), scale=1.0, n=0)
    s.opt = torch.optim.SGD(s.model.parameters(), lr=0.05, momentum=0.5)
    s.schedule = lr_scheduler.StepLR(s.opt, 2, 0.8)
    s.saved, s.handles = copy.deepcopy(s.model.state_dict()), []
    return s


def _step(s, x):
    s.n += 1
    s.opt.zero_grad()
    loss = (s.model(x) * s.scale).square().mean()
    loss.backward()
    s.opt.step()
    s.schedule.step()
    return loss.detach()


def _load(s, k):
    s.model.load_state_dict(s.saved)
    s.opt.load_state_dict(copy.deepcopy(s.opt.state_dict()))


def _hook(s, k):
    for handle in s.handles:
        handle.remove()
    hook = s.model[2].register_forward_hook(lambda module, args, out: out * (1 + k))
    s.handles = [hook]


CHANGES = (
    lambda s, k: s.opt.param_groups[0].update(lr=0.01 * (1 + k)),
    lambda s, k: s.opt.param_groups[0].update(momentum=(0.5, 0.9, 0.0)[k]),
    lambda s, k: setattr(s, "scale", (1.0, 2, True)[k]),
    lambda s, k: s.model.train(k > 0),
    lambda s, k: s.model[0].requires_grad_(k > 0),
    lambda s, k: setattr(s.model[1], "p", 0.2 * k),
    _load,
    lambda s, k: s.opt.state.clear(),
    _hook,
    lambda s, k: setattr(s.model[2].weight, "data", torch.full((3, 3), 0.1 * k).to("jax")),
    lambda s, k: setattr(s.model[2], "bias", nn.Parameter(torch.full((3,), 0.1 * k).to("jax"))),
    lambda s, k: torch.manual_seed(k),
    lambda s, k: setattr(s, "n", k),
)


def _changed(compile, part):
    order, s = random.Random(0), _trainer()
    f, drawn = compile(lambda x: _step(s, x)), order.sample(CHANGES, len(CHANGES))
    for change in drawn[part::3]:
        yield f(m() / 10), s.model, s.opt, s.n
        change(s, order.randrange(3))
        yield f(m() / 10), s.model, s.opt, s.n


@program
def a_third_of_all_changes(compile):
    yield from _changed(compile, 0)


@program
def another_third_of_all_changes(compile):
    yield from _changed(compile, 1)


@program
def the_last_third_of_all_changes(compile):
    yield from _changed(compile, 2)
