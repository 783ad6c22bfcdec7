"""Users change a model, an optimizer or a mode between calls: each change has its effect."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.autocast import autocast
from tests.support.steps import mlp
from tests.support.values import ones
from torch_jax import config

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, capturable=True),
}


def _doubled(model):
    return {name: tensor * 2 for name, tensor in model.state_dict().items()}


OF_MODELS = {
    "evaluation": lambda m: m.eval(),
    "double": lambda m: m.double(),
    "a parameter replaced": lambda m: setattr(m[0], "weight", nn.Parameter(ones(4, 4) * 0.3)),
    "data set": lambda m: setattr(m[0].weight, "data", m[0].weight.data * 2),
    "frozen": lambda m: m[0].requires_grad_(False),
    "bias dropped": lambda m: m[0].register_parameter("bias", None),
    "loaded": lambda m: m.load_state_dict(_doubled(m)),
    "assigned": lambda m: m.load_state_dict(_doubled(m), assign=True),
}
OF_OPTIMIZERS = {
    "loaded": lambda m, o, saved: o.load_state_dict(saved),
    "cleared": lambda m, o, saved: o.state.clear(),
    "a group more": lambda m, o, saved: o.add_param_group({"params": [*m[2].parameters()]}),
    "parameters": lambda m, o, saved: o.param_groups[0]["params"].extend(m[2].parameters()),
    "frozen": lambda m, o, saved: m[0].weight.requires_grad_(False),
    "decay": lambda m, o, saved: o.param_groups[0].update(weight_decay=0.3),
    "rate": lambda m, o, saved: o.param_groups[0].update(lr=np.float64(0.05)),
}


def steps(change, make_optimizer=None):
    """Eight steps of training, with a change between them; no audit finds what guards do not."""

    def program(compile):
        model, saved = mlp(), None
        model[1] = nn.Dropout(0.0)
        optimizer = make_optimizer(model[0].parameters()) if make_optimizer else None

        def step(x):
            model.zero_grad()
            loss = model(x.to(next(model.parameters()))).square().mean()
            loss.backward()
            if optimizer is not None:
                optimizer.step()
            return loss.detach()

        step = compile(step)
        with config.temporarily("jit_check_every", 0):
            for call in range(8):
                if call == 3 and optimizer is not None:
                    saved = copy.deepcopy(optimizer.state_dict())
                if call == 5:
                    change(model, optimizer, saved)
                yield step(ones(3, 4)), list(model.parameters())

    return program


@pytest.mark.parametrize("change", OF_MODELS.values(), ids=OF_MODELS)
def test_a_model_that_changes(change, agree):
    agree(steps(lambda model, *_: change(model)), kinds=None)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("change", OF_OPTIMIZERS.values(), ids=OF_OPTIMIZERS)
def test_an_optimizer_that_changes(change, kind, agree):
    agree(steps(change, OPTIMIZERS[kind]), kinds=range(1, 3), tolerance=1e-4)


def test_counts_that_are_set_anew_on_the_cpu(agree):
    """A program counts on the device."""

    def change(model, optimizer, saved):
        for state in optimizer.state.values():
            state["step"] = torch.tensor(0.0)

    agree(steps(change, OPTIMIZERS["adam"]), kinds=range(1, 3), tolerance=1e-4)


def modes_and_shapes(compile):
    weight = ones(3, 3).requires_grad_()
    function = compile(lambda x: x @ weight)
    calls = [(torch.enable_grad, 2), (torch.no_grad, 2), (torch.enable_grad, 4)]
    for mode, rows in [*calls, (torch.inference_mode, 4), (autocast, 2)] * 3:
        with mode():
            y = function(torch.arange(3.0 * rows).view(rows, 3).to("jax"))
        yield y


def a_view_that_moves_on(compile):
    base = torch.arange(6.0).to("jax")
    part = base[:3]
    function = compile(lambda x: x * part)
    with config.temporarily("jit_check_every", 0):
        for call in range(6):
            part.set_(base.untyped_storage(), call // 3, (3,), (1,))
            yield function(ones()), part


def gradients_that_come_and_go(compile):
    """The backward pass is outside: a parameter may have no gradient at some steps."""
    one, two = (nn.Parameter(ones()) for _ in range(2))
    optimizer = torch.optim.SGD([one, two], lr=0.1)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    step = compile(step)
    for call in range(12):
        (one * call).sum().backward()
        if call not in (5, 6, 9):
            (two * 2).sum().backward()
        yield step(), one, two


FINDS = {modes_and_shapes: 5, a_view_that_moves_on: 2, gradients_that_come_and_go: 2}


@pytest.mark.parametrize("program", FINDS, ids=lambda program: program.__name__)
def test_what_a_call_finds(program, agree):
    agree(program, FINDS[program])
