"""Random numbers: of the device, the CPU, Python and NumPy; seeds, states, generators."""

from __future__ import annotations

import random

import torch

from tests.programs.writing import Bag, program, t


@program
def random_numbers_go_on(compile):
    f = compile(lambda x: x + torch.rand(3, device="jax"))
    for k in range(7):
        yield f(t(k))
        if k == 4:
            torch.manual_seed(3)
    yield torch.rand(3, device="jax")


@program
def random_numbers_on_some_calls(compile):
    f = compile(lambda x, noise: x + torch.rand_like(x) if noise else x)
    for k in range(8):
        yield f(t(k), k % 3 == 0)
    yield torch.rand(2, device="jax")


@program
def a_generator_of_its_own(compile):
    g = torch.Generator("jax").manual_seed(1)
    f = compile(lambda x: x + torch.rand(3, device="jax", generator=g))
    for k in range(7):
        yield f(t(k)), g.get_state().cpu()
        if k == 4:
            g.manual_seed(1)


@program
def a_state_is_kept_and_set(compile):
    f = compile(lambda x: x + torch.rand(3, device="jax"))
    kept = None
    for k in range(7):
        yield f(t(k))
        if k == 2:
            kept = torch.jax.get_rng_state()
        if k == 4:
            torch.jax.set_rng_state(kept)


@program
def a_seed_inside(compile):
    s = Bag(seed=1)

    def step(x):
        torch.manual_seed(s.seed)
        return x + torch.rand(3, device="jax")

    f = compile(step)
    for k in range(7):
        yield f(t(k)), torch.rand(2, device="jax")
        s.seed = k % 3


@program
def states_are_forked_inside(compile):
    def step(x):
        with torch.random.fork_rng(devices=[0], device_type="jax"):
            y = x + torch.rand(3, device="jax")
        return y + torch.rand(3, device="jax")

    f = compile(step)
    for k in range(6):
        yield f(t(k))


@program
def numbers_of_the_cpu(compile):
    f = compile(lambda x: x + torch.rand(3).to("jax"))
    for k in range(7):
        yield f(t(k)), torch.rand(1)
        if k == 4:
            torch.manual_seed(0)


@program
def two_numbers_of_the_cpu_decide(compile):
    def step(x):
        if torch.rand(()) > 0.5:
            x = x * 2
        if torch.rand(()) > 0.5:
            x = x + 1
        return x

    f = compile(step)
    for k in range(10):
        yield f(t(k))
    yield torch.rand(1)


@program
def numbers_of_the_cpu_are_drawn_before_a_look(compile):
    c = torch.zeros(())

    def step(x):
        noise = torch.rand(3).to("jax")
        return x * noise if c.item() > 2 else x + noise

    f = compile(step)
    for k in range(8):
        c.fill_(k)
        yield f(t(1))
    yield torch.rand(1)


@program
def python_draws_a_number(compile):
    f = compile(lambda x: x * random.uniform(1, 2) + random.choice([1, 2, 3]))
    for k in range(7):
        yield f(t(k))
        if k == 4:
            random.seed(0)


@program
def dropout_follows_the_seed(compile):
    f = compile(lambda x: torch.nn.functional.dropout(x, 0.5))
    for k in range(7):
        torch.manual_seed(k % 3)
        yield f(t(1)), torch.rand(1, device="jax")


@program
def in_place_draws(compile):
    w = t(1)

    def step(x):
        w.normal_()
        return x + w

    f = compile(step)
    for k in range(7):
        yield f(t(k)), w


@program
def a_permutation_and_a_choice(compile):
    f = compile(lambda x: (x[torch.randperm(3, device="jax")], torch.bernoulli(x * 0 + 0.5)))
    for k in range(6):
        yield f(t(k))
