"""``Optax`` in a compiled step: the results of eager steps, with all parts of a step around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import optax
import pytest
import torch
from torch import nn

import torch_jax
from torch_jax.optim import Optax

Around = Callable[[Callable], Callable]


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to("jax", dtype)


def ones(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(2, 3, device="jax", dtype=dtype)


def scaled(run: Around) -> Iterator[Any]:
    """A step with infinite gradients is left out, and its count, too."""
    module = model()
    optimizer = Optax(module.parameters(), optax.adam, lr=1e-2)
    scaler = torch.amp.GradScaler("jax", init_scale=4.0, growth_interval=2)

    @run
    def step(x, factor):
        optimizer.zero_grad()
        with torch.autocast("jax", torch.float16):
            loss = (module(x) * factor).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for factor in (1.0, 1.0, float("inf"), 1.0, 1.0):
        yield step(ones(), torch.tensor(factor).to("jax")).item()
        yield scaler.get_scale()
    yield optimizer.state[module[0].weight]["count"].item()


def plateaus(run: Around) -> Iterator[Any]:
    """The loss is an argument of the step."""
    module = model()
    tx = optax.chain(optax.sgd(1.0), optax.contrib.reduce_on_plateau(0.5, patience=1))
    optimizer = Optax(module.parameters(), tx)

    @run
    def step(x):
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step(value=loss)
        return loss.detach()

    for _ in range(6):
        yield step(ones()).item()
        yield optimizer.state[module[0].weight]["1.scale"].item()


def with_masters(run: Around) -> Iterator[Any]:
    """Parameters of low precision, and state of high."""
    module = model(torch.bfloat16)
    optimizer = torch_jax.MasterWeights(Optax(module.parameters(), optax.adamw, lr=1e-2))

    @run
    def step(x):
        optimizer.zero_grad()
        loss = module(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(4):
        yield step(ones(torch.bfloat16)).item()
    state = optimizer.state[optimizer.masters[module[0].weight]]
    yield state["inner_state.0.mu"].dtype == torch.float32


def groups_that_change(run: Around) -> Iterator[Any]:
    """A group is added, a parameter frozen, and a state loaded, between steps."""
    module = model()
    optimizer = Optax(module[0].parameters(), optax.adam, lr=1e-2)

    @run
    def step(x):
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for number in range(7):
        if number == 2:
            optimizer.add_param_group({"params": list(module[2].parameters()), "lr": 0.1})
            state = optimizer.state_dict()
        if number == 4:
            module[0].weight.requires_grad_(False)
        if number == 5:
            optimizer.load_state_dict(state)
        yield step(ones()).item()


def closures(run: Around) -> Iterator[Any]:
    """The step computes the loss."""
    module = model()
    optimizer = Optax(module.parameters(), optax.lbfgs(0.1, linesearch=None))

    def closure():
        optimizer.zero_grad()
        loss = module(ones()).square().mean()
        loss.backward()
        return loss

    step = run(lambda: optimizer.step(closure).detach())
    for _ in range(4):
        yield step().item()


SLOW = [groups_that_change, scaled, with_masters, closures]


@pytest.mark.usefixtures("eager_by_xla")
@pytest.mark.slow
@pytest.mark.filterwarnings("error:.*(is not pure|cannot skip its Python)")
@pytest.mark.parametrize(
    "program",
    [plateaus, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)],
    ids=lambda program: program.__name__,
)
def test_a_compiled_step_is_the_eager_one(program):
    eagerly = list(program(lambda step: step))
    looks = program is scaled  # the scaler does, so that Python runs
    with pytest.warns(UserWarning, match="looks at a value") if looks else nullcontext():
        compiled = list(program(torch_jax.jit(pure=True)))
    assert len(set(map(str, eagerly))) > 2
    assert compiled == pytest.approx(eagerly, rel=1e-5)
