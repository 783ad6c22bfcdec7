"""Random numbers: of the device, the CPU, Python and NumPy; seeds, states, generators."""

from __future__ import annotations

import random
import secrets

import numpy as np
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
def random_numbers_in_between(compile):
    f = compile(lambda x: x + torch.randn_like(x))
    for k in range(7):
        yield f(t(k)), torch.rand(2, device="jax") if k % 2 else None


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
def a_generator_is_replaced(compile):
    s = Bag(g=torch.Generator("jax").manual_seed(1))
    f = compile(lambda x: x + torch.rand(3, device="jax", generator=s.g))
    for k in range(7):
        yield f(t(k))
        if k % 3 == 2:
            s.g = torch.Generator("jax").manual_seed(k)


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
def a_number_of_the_cpu_decides(compile):
    f = compile(lambda x: x * 2 if torch.rand(()) > 0.5 else x + 1)
    for k in range(9):
        yield f(t(k))
    yield torch.rand(1)


@program
def a_number_of_the_cpu_is_an_item(compile):
    f = compile(lambda x: x * torch.randint(0, 5, ()).item())
    for k in range(7):
        yield f(t(k))
    yield torch.rand(1)


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
def a_generator_of_the_cpu(compile):
    g = torch.Generator().manual_seed(1)
    f = compile(lambda x: x + torch.rand(3, generator=g).to("jax"))
    for k in range(7):
        yield f(t(1)), g
        if k == 4:
            g.manual_seed(1)


@program
def python_decides(compile):
    f = compile(lambda x: x * 2 if random.random() > 0.5 else x + 1)
    for k in range(8):
        yield f(t(k))
    yield random.random()


@program
def python_draws_a_number(compile):
    f = compile(lambda x: x * random.uniform(1, 2) + random.choice([1, 2, 3]))
    for k in range(7):
        yield f(t(k))
        if k == 4:
            random.seed(0)


@program
def python_shuffles(compile):
    items = [1.0, 2.0, 3.0, 4.0]

    def step(x):
        random.shuffle(items)
        return x * items[0] - items[1]

    f = compile(step)
    for k in range(7):
        yield f(t(k)), items


@program
def a_python_generator_of_its_own(compile):
    rng = random.Random(5)
    f = compile(lambda x: x * rng.random() + rng.randint(0, 9))
    for k in range(7):
        yield f(t(k))
        if k == 4:
            rng.seed(5)


@program
def a_kept_method_of_random(compile):
    from random import random as draw

    f = compile(lambda x: x * draw())
    for k in range(6):
        yield f(t(k))


@program
def numpy_draws(compile):
    f = compile(lambda x: x * float(np.random.rand()) + int(np.random.randint(5)))
    for k in range(7):
        yield f(t(k))
        if k == 4:
            np.random.seed(0)


@program
def a_numpy_generator(compile):
    rng = np.random.default_rng(0)
    f = compile(lambda x: x * float(rng.random()))
    for k in range(7):
        yield f(t(k)), float(rng.random()) if k % 2 else None


@program
def a_random_state_of_numpy(compile):
    rng = np.random.RandomState(0)
    f = compile(lambda x: x * float(rng.uniform()))
    for k in range(7):
        yield f(t(k))
        if k == 4:
            rng.seed(0)


@program
def numpy_augments(compile):
    def step(x):
        flip = np.random.rand() > 0.5
        return x.flip(0) if flip else x * 1

    f = compile(step)
    for k in range(9):
        yield f(t(k))


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


@program
def secret_numbers_have_a_form(compile):
    f = compile(lambda x: (x.shape, secrets.token_bytes(2)))
    found = {f(t(1))[1] for _ in range(40)}
    yield len(found) > 20
    yield f(t(1))[0]


@program
def a_seed_from_an_argument(compile):
    def step(x, seed):
        g = torch.Generator("jax").manual_seed(seed)
        return x + torch.rand(3, device="jax", generator=g)

    f = compile(step)
    for k in range(7):
        yield f(t(k), k % 3)
