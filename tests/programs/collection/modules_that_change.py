"""Modules: parts added, taken away, replaced, tied, loaded, moved, cast."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.programs.writing import Bag, linear, program, t


def _net():
    return nn.Sequential(linear(), nn.Tanh(), linear())


def _shown(compile, change, model=None, calls=7):
    model = model if model is not None else _net()
    f = compile(lambda x: model(x).detach())
    for k in range(calls):
        yield f(t(k)), [n for n, _ in model.named_parameters()]
        change(k, model)


@program
def a_layer_is_replaced(compile):
    yield from _shown(compile, lambda k, n: n.__setitem__(k % 3, linear()) if k % 2 else None)


@program
def layers_swap(compile):
    def change(k, n):
        n[0], n[2] = n[2], n[0]

    yield from _shown(compile, change)


@program
def a_bias_is_taken_away(compile):
    def change(k, n):
        n[0].bias = None if k % 3 == 1 else nn.Parameter(t(k))

    yield from _shown(compile, change)


@program
def tied_weights_are_trained(compile):
    net = _net()
    net[2].weight = net[0].weight
    opt = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(x):
        opt.zero_grad()
        net(x).square().sum().backward()
        opt.step()
        return net[2].weight.detach() * 1

    f = compile(step)
    for k in range(7):
        yield f(t(k / 4)), net[0].weight is net[2].weight
        if k == 3:
            net[2].weight = nn.Parameter(net[0].weight.detach().clone())


@program
def a_state_is_assigned(compile):
    def change(k, n):
        if k % 3 == 2:
            n.load_state_dict(copy.deepcopy(_net().state_dict()), assign=True)

    yield from _shown(compile, change, calls=8)


@program
def a_module_is_cast(compile):
    net = linear()
    f = compile(lambda x: net(x).detach())
    for k in range(7):
        dtype = (torch.float32, torch.bfloat16)[k % 2]
        net.to(dtype)
        yield f(t(k).to(dtype))


@program
def a_buffer_counts(compile):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x):
            self.n += 1
            return x * self.n

    net = Counts().to("jax")
    yield from _shown(compile, lambda k, n: n.n.zero_() if k == 4 else None, net)


@program
def a_buffer_is_replaced(compile):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", t(0))

        def forward(self, x):
            self.mean = self.mean * 0.9 + x * 0.1
            return x - self.mean

    net = Shifted()
    f = compile(lambda x: net(x))
    for k in range(7):
        yield f(t(k)), net
        if k == 4:
            net.mean = t(5)


@program
def a_parameter_is_registered_later(compile):
    net = linear()
    f = compile(lambda x: (sum(p.sum() for p in net.parameters()) * x).detach())
    g = compile(lambda x: x * net.extra.detach() if hasattr(net, "extra") else x)
    for k in range(7):
        yield f(t(1)), g(t(1))
        if k == 2:
            net.extra = nn.Parameter(t(2))
        if k == 4:
            del net.extra


@program
def parameters_in_lists(compile):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.ws = nn.ParameterList([nn.Parameter(t(1)), nn.Parameter(t(2))])

        def forward(self, x):
            return sum(self.ws) * x

    def change(k, n):
        if k == 2:
            n.ws.append(nn.Parameter(t(7)))
        if k == 4:
            n.ws[0] = nn.Parameter(t(-3))

    yield from _shown(compile, change, Net())


@program
def a_lazy_layer_compiled_itself(compile):
    torch.manual_seed(0)
    net = compile(nn.LazyLinear(3, device="jax"))
    for k in range(6):
        yield net(t(k)).detach(), type(net).__name__


@program
def a_module_is_compiled(compile):
    net = compile(_net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for k in range(7):
        opt.zero_grad()
        loss = net(t(k / 4)).square().sum()
        loss.backward()
        opt.step()
        yield loss, net
        net.train(k % 2 == 0)


@program
def parts_of_a_module_are_compiled(compile):
    net = _net()
    compile(net[0])
    compile(net[2])
    for k in range(7):
        y = net(t(k))
        y.sum().backward()
        yield y.detach(), net
        if k == 3:
            net[0].bias = nn.Parameter(t(9))


@program
def a_compiled_module_is_copied(compile):
    net = compile(linear())
    for k in range(3):
        yield net(t(k)).detach()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.bias.add_(100)
    for k in range(4):
        yield net(t(k)).detach(), other(t(k)).detach()


@program
def a_compiled_module_loads_its_state(compile):
    net = compile(linear())
    kept = copy.deepcopy(net.state_dict())
    for k in range(6):
        yield net(t(k)).detach(), list(net.state_dict())
        with torch.no_grad():
            net.weight.mul_(2)
        if k == 3:
            net.load_state_dict(kept)


@program
def batch_norm_in_training(compile):
    net = nn.Sequential(nn.BatchNorm1d(3), linear()).to("jax")

    def change(k, n):
        n.train(k % 3 != 1)
        n[0].momentum = (0.1, None, 0.5)[k % 3]

    net_in = torch.arange(12.0).view(4, 3).to("jax")
    f = compile(lambda x: net(x).detach())
    for k in range(8):
        yield f(net_in * k), net
        change(k, net)


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
def an_embedding_gets_more_rows(compile):
    s = Bag(table=nn.Embedding(3, 2).to("jax"))
    f = compile(lambda i: s.table(i).detach())
    for k in range(7):
        yield f(torch.tensor([k % 3, 0]).to("jax"))
        if k == 3:
            s.table = nn.Embedding(5, 2).to("jax")


@program
def a_module_is_applied_to(compile):
    net = _net()

    def reset(part):
        if isinstance(part, nn.Linear):
            with torch.no_grad():
                part.weight.mul_(0.5)

    def step(x):
        net.apply(reset)
        return net(x).detach()

    f = compile(step)
    for k in range(6):
        yield f(t(k)), net


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
