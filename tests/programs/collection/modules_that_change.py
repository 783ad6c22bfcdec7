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
def a_layer_is_replaced_by_one_of_the_same_kind(compile):
    yield from _shown(compile, lambda k, n: setattr(n, "0", linear()))


@program
def a_layer_is_appended(compile):
    yield from _shown(compile, lambda k, n: n.append(nn.ReLU()) if k == 3 else None)


@program
def a_layer_is_deleted(compile):
    def change(k, n):
        if k == 3:
            del n[1]

    yield from _shown(compile, change)


@program
def layers_swap(compile):
    def change(k, n):
        n[0], n[2] = n[2], n[0]

    yield from _shown(compile, change)


@program
def a_parameter_is_replaced(compile):
    def change(k, n):
        n[0].bias = nn.Parameter(t(k))

    yield from _shown(compile, change)


@program
def a_bias_is_taken_away(compile):
    def change(k, n):
        n[0].bias = None if k % 3 == 1 else nn.Parameter(t(k))

    yield from _shown(compile, change)


@program
def weights_are_tied(compile):
    def change(k, n):
        if k == 2:
            n[2].weight = n[0].weight
        if k == 3:
            n[0].weight.data.mul_(2)
        if k == 5:
            n[2].weight = nn.Parameter(n[0].weight.detach().clone())

    yield from _shown(compile, change, calls=9)


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
def one_layer_twice(compile):
    layer = linear()
    net = nn.Sequential(layer, layer)

    def change(k, n):
        if k == 3:
            n[1] = linear()

    yield from _shown(compile, change, net)


@program
def a_state_is_loaded(compile):
    other = _net().state_dict()
    yield from _shown(compile, lambda k, n: n.load_state_dict(other) if k == 3 else None)


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
def a_buffer_becomes_none(compile):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", None)

        def forward(self, x):
            return x if self.mask is None else x * self.mask

    net = Masked()
    yield from _shown(compile, lambda k, n: setattr(n, "mask", t(k) if k % 2 else None), net)


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
def a_count_of_steps_in_a_module(compile):
    class Warm(nn.Module):
        steps = 0

        def forward(self, x):
            self.steps += 1
            return x * min(1.0, self.steps / 10)

    net = Warm()
    f = compile(lambda x: net(x))
    for k in range(14):
        yield f(t(1)), net.steps


@program
def a_list_of_modules_changes(compile):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([linear(), linear()])
            self.order = [0, 1]

        def forward(self, x):
            for i in self.order:
                x = self.parts[i](x)
            return x

    def change(k, n):
        n.order.reverse()
        if k == 3:
            n.parts.append(linear())
            n.order.append(2)

    yield from _shown(compile, change, Net())


@program
def a_dict_of_modules_changes(compile):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict({"a": linear(), "b": nn.Tanh()})
            self.active = "a"

        def forward(self, x):
            return self.parts[self.active](x)

    def change(k, n):
        n.active = "ab"[k % 2]
        if k == 4:
            n.parts["a"] = nn.Sigmoid()

    yield from _shown(compile, change, Net())


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
def a_lazy_layer(compile):
    net = nn.Sequential(nn.LazyLinear(3, device="jax"), nn.Tanh())
    f = compile(lambda x: net(x).detach())
    for k in range(6):
        yield f(t(k)), type(net[0]).__name__


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
def the_epsilon_of_a_norm_changes(compile):
    net = nn.LayerNorm(3).to("jax")
    yield from _shown(compile, lambda k, n: setattr(n, "eps", 10.0 ** -(k + 1)), net)


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
def a_recurrent_state_is_returned(compile):
    lstm = nn.LSTM(3, 2, batch_first=True).to("jax")
    f = compile(lambda x, state: lstm(x, state))
    state = None
    for k in range(6):
        y, state = f(t(k).view(1, 1, 3), state)
        yield y.detach(), [part.detach() for part in state]


@program
def an_embedding_gets_more_rows(compile):
    s = Bag(table=nn.Embedding(3, 2).to("jax"))
    f = compile(lambda i: s.table(i).detach())
    for k in range(7):
        yield f(torch.tensor([k % 3, 0]).to("jax"))
        if k == 3:
            s.table = nn.Embedding(5, 2).to("jax")


@program
def modules_are_walked_inside(compile):
    net = _net()

    def step(x):
        total = 0
        for name, p in net.named_parameters():
            if name.endswith("bias"):
                total = total + (p * p).sum()
        return x + total.detach()

    f = compile(step)
    for k in range(7):
        yield f(t(k))
        if k == 2:
            net.append(linear())
        if k == 4:
            net[0].bias.data.mul_(3)


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
def modules_are_made_inside(compile):
    def step(x, width):
        torch.manual_seed(width)
        return nn.Linear(3, width).to("jax")(x).detach()

    f = compile(step)
    for k in range(6):
        yield f(t(k), 1 + k % 3)


@program
def attributes_by_getattr_of_modules(compile):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear()

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return x @ self.weight + self.shift

    net = Net()
    net.inner.shift = 1.0
    f = compile(lambda x: net(x).detach())
    for k in range(7):
        yield f(t(k))
        net.inner.shift += 1
        if k == 4:
            net.shift = 100.0


@program
def functional_calls(compile):
    net = linear()
    s = Bag(state={n: p.detach().clone() for n, p in net.named_parameters()})
    f = compile(lambda x: torch.func.functional_call(net, s.state, (x,)))
    for k in range(7):
        yield f(t(k))
        s.state["bias"] = t(k)


@program
def ensembles_of_modules(compile):
    nets = [linear(), linear()]
    f = compile(lambda x: torch.stack([n(x).detach() for n in nets]).mean(0))
    for k in range(7):
        yield f(t(k))
        if k == 2:
            nets.append(linear())
        if k == 4:
            nets.pop(0)
