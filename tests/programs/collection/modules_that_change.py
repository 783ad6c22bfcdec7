"""Modules: compiled, cast, with statistics and states of their own.

``trainers`` changes modules that a function finds, ``tests/capture`` copies and loads compiled.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.writing import Bag, linear, program, t


@program
def a_buffer_counts_and_one_is_replaced(compile):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.n += 1
            self.mean = self.mean * 0.9 + x * 0.1
            return (x - self.mean) * self.n

    net = Shifted().to("jax")
    f = compile(lambda x: net(x))
    for k in range(7):
        yield f(t(k)), net
        if k == 3:
            net.n.zero_()
        if k == 4:
            net.mean = t(5)


@program
def a_lazy_layer_compiled_itself(compile):
    torch.manual_seed(0)
    net = compile(nn.LazyLinear(3, device="jax"))
    for k in range(6):
        yield net(t(k)).detach(), type(net).__name__


@program
def a_compiled_module_and_parts_of_one_are_trained(compile):
    for is_whole in (True, False):
        net = nn.Sequential(linear(), nn.Tanh(), linear())
        for part in (net,) if is_whole else (net[0], net[2]):
            compile(part)
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        for k in range(6):
            opt.zero_grad()
            loss = net(t(k / 4)).square().sum()
            loss.backward()
            opt.step()
            yield loss, net
            net.train(k % 2 == 0)
            if k == 3:
                net[0].bias = nn.Parameter(t(9))


@program
def batch_norm_in_training(compile):
    net = nn.Sequential(nn.BatchNorm1d(3), linear()).to("jax")
    x = torch.arange(12.0).view(4, 3).to("jax")
    f = compile(lambda x: net(x).detach())
    for k in range(8):
        yield f(x * k), net
        net.train(k % 3 != 1)
        net[0].momentum = (0.1, None, 0.5)[k % 3]


@program
def a_recurrent_state_is_kept(compile):
    cell, s = nn.GRUCell(3, 3).to("jax"), Bag(h=None)

    def step(x):
        s.h = cell(x.unsqueeze(0), s.h)
        return s.h.detach()

    f = compile(step)
    for k in range(7):
        yield f(t(k))
        if k == 4:
            s.h = None


@program
def a_module_goes_to_double_inside_and_back(compile):
    net = linear()

    def step(x):
        wide = net.double()(x.double()).detach()
        return wide, net.float()(x).detach()

    f = compile(step)
    for k in range(6):
        yield f(t(k)), net
        if k == 3:
            net.double()
