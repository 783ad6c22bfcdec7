"""Random numbers: of the device and the CPU; seeds, states, generators."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.programs.writing import program, t


def _rand(**options):
    return torch.rand(3, device="jax", **options)


@program
def random_numbers_go_on(compile):
    f = compile(lambda x, noise: x + torch.rand_like(x) * _rand() if noise else x)
    for k in range(9):
        yield f(t(k), k % 3 != 1)
        if k == 4:
            torch.manual_seed(3)
    yield _rand()


@program
def a_generator_of_its_own(compile):
    g = torch.Generator("jax").manual_seed(1)
    f = compile(lambda x: x + _rand(generator=g))
    for k in range(7):
        yield f(t(k)), g.get_state().cpu()
        if k == 4:
            g.manual_seed(1)


@program
def states_are_kept_set_and_forked(compile):
    def step(x):
        with torch.random.fork_rng(devices=[0], device_type="jax"):
            y = x + _rand()
        return y + _rand()

    f, kept = compile(step), None
    for k in range(7):
        yield f(t(k))
        if k == 2:
            kept = torch.jax.get_rng_state()
        if k == 4:
            torch.jax.set_rng_state(kept)


@program
def seeds_inside_and_outside(compile):
    def step(x, seed):
        y = F.dropout(x, 0.5) + _rand()
        torch.manual_seed(seed)
        return y + _rand()

    f = compile(step)
    for k in range(7):
        yield f(t(k), k % 3), _rand()
        torch.manual_seed(k % 2)


@program
def numbers_of_the_cpu_decide(compile):
    """They are drawn before and after Python looks at one."""
    c = torch.zeros(())

    def step(x):
        x = x + torch.rand(3).to("jax")
        if torch.rand(()) > 0.5:
            x = x * 2
        if torch.rand(()) > 0.5 or c.item() > 2:
            x = x + torch.rand(3).to("jax")
        return x

    f = compile(step)
    for k in range(10):
        c.fill_(k)
        yield f(t(k)), torch.rand(1)
        if k == 7:
            torch.manual_seed(0)


@program
def draws_of_all_kinds(compile):
    w = t(1)

    def step(x):
        w.normal_()
        return x + w, x[torch.randperm(3, device="jax")], torch.bernoulli(x * 0 + 0.5)

    f = compile(step)
    for k in range(6):
        yield f(t(k)), w
