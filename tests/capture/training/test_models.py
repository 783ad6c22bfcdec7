"""Steps of training with models of all kinds: they learn as plain calls do, and skip Python."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.support.autocast import autocast

pytestmark = pytest.mark.xla_both
STEPS = 10  # an audit comes at the 2nd, 4th and 8th


def perceptron(dropout=0.0):
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3))


class Tied(nn.Module):
    """An embedding of the signs of the inputs, and a head with the same weights."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(3, 8), nn.Linear(8, 3, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x.sign().long() + 1).mean(1))


def batches(count=STEPS):
    """Inputs and classes, of which there are three."""
    for _ in range(count):
        yield torch.randn(8, 6).to("jax"), torch.randint(3, (8,)).to("jax")


def mixed(model, x):
    with autocast():
        return model(x)


def again(model, x):
    return checkpoint(model, x, use_reentrant=False)


def training(make, run=lambda model, x: model(x), clip=0.0, set_to_none=True):
    def program(compile):
        model = make().to("jax")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)

        def step(x, y):
            optimizer.zero_grad(set_to_none)
            loss = F.cross_entropy(run(model, x), y)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            return loss

        step = compile(step)
        for x, y in batches():
            yield step(x, y), [p.detach() for p in model.parameters()], list(model.buffers())
        yield list(model.parameters())  # with their gradients

    return program


def adversaries(compile):
    generator, critic = perceptron().to("jax"), nn.Linear(3, 1).to("jax")
    both = [torch.optim.Adam(m.parameters(), 1e-3, (0.5, 0.999)) for m in (critic, generator)]

    def step(x):
        made = generator(torch.randn(8, 6, device="jax"))
        both[0].zero_grad()
        loss = F.softplus(critic(x)).mean() + F.softplus(-critic(made.detach())).mean()
        loss.backward()
        both[0].step()
        both[1].zero_grad()
        fooled = F.softplus(critic(made)).mean()
        fooled.backward()
        both[1].step()
        return torch.stack([loss.detach(), fooled.detach()])

    step = compile(step)
    for x, _ in batches():
        loss = step(x.narrow(1, 0, 3).contiguous())
        yield loss, [*generator.parameters(), *critic.parameters()]


def in_parts(compile):
    """Gradients of several backward passes, which are those of the whole batch."""
    model = perceptron().to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        for part in x.chunk(4):
            (model(part).square().mean() / 4).backward()
        optimizer.step()
        return x + 0  # an argument passes the ends of all backward passes

    step = compile(step)
    for x, _ in batches(4):
        whole = copy.deepcopy(model)
        whole.zero_grad()
        whole(x).square().mean().backward()
        yield step(x), list(model.parameters())
        for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())


def two_optimizers_and_a_graph_that_is_kept(compile):
    one, other = nn.Linear(3, 3).to("jax"), nn.Linear(3, 3).to("jax")
    both = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, other)]

    def step(x):
        for optimizer in both:
            optimizer.zero_grad()
        y = one(x)
        (y - 1).square().sum().backward(retain_graph=True)
        both[0].step()
        other(y.detach()).square().sum().backward()
        y.sin().sum().backward()
        both[1].step()

    step = compile(step)
    for _ in range(4):
        yield step(torch.eye(3).to("jax")), list(one.parameters()), list(other.parameters())


CASES = {
    "perceptron": training(perceptron),
    "tied weights": training(Tied),
    "autocast": training(perceptron, mixed),
    "autocast and clipping": training(perceptron, mixed, clip=0.3),
    "clip_grad_norm_": training(perceptron, clip=0.3),
    "dropout": training(lambda: perceptron(0.3)),
    "checkpoint": training(perceptron, again),
    "checkpoint with dropout": training(lambda: perceptron(0.3), again),
    "gradients set to zero": training(perceptron, set_to_none=False),
    "adversaries": adversaries,
    "parts of a batch": in_parts,
    "a graph that is kept": two_optimizers_and_a_graph_that_is_kept,
}
TWO_KINDS = ("gradients set to zero",)  # the first step makes them, all later ones write into them


@pytest.mark.usefixtures("eager_by_xla")
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_models_train_as_they_do_eagerly(name, agree):
    agree(CASES[name], 1 + (name in TWO_KINDS), tolerance=1e-4)


def layers_that_meet_their_input(compile):
    net = nn.Sequential(nn.LazyLinear(3, bias=False), nn.LazyBatchNorm1d()).to("jax")
    step = compile(lambda x: net(x).sum().backward())
    for _ in range(4):
        yield step(torch.eye(3).to("jax")), net[0].weight.shape, net[1].num_batches_tracked


def test_lazy_layers_meet_their_input_in_a_step(agree):
    agree(layers_that_meet_their_input, 2)
