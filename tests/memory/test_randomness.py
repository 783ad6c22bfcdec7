"""Randomness: states, generators, executors, checkpoints, streams of processes and threads."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.extend.random import threefry2x32_p
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_jax
from torch_jax.memory import generators

KINDS = ["cpu", "jax"]


def draw(generator: torch.Generator | None = None, n: int = 4) -> list[float]:
    return torch.rand(n, device="jax", generator=generator).tolist()


# --- states and seeds -----------------------------------------------------------------------------


def test_manual_seed_seeds_both_devices():
    torch.manual_seed(11)
    first = draw(), torch.rand(4).tolist()
    torch.manual_seed(11)
    assert (draw(), torch.rand(4).tolist()) == first
    assert torch.jax.initial_seed() == torch.initial_seed() == 11
    torch.manual_seed(12)
    assert draw() != first[0]
    torch.jax.manual_seed(11)
    assert draw() == first[0]
    assert torch.initial_seed() == 12  # torch.jax.manual_seed is for the device alone
    torch.jax.seed()
    assert draw() != first[0]


@pytest.mark.parametrize("device", ["jax", "jax:0", 0, torch.device("jax"), torch.device("jax", 0)])
def test_the_state_by_any_name_of_the_device(device):
    state = torch.jax.get_rng_state(device)
    first = draw()
    torch.jax.set_rng_state(state, device)
    assert draw() == first
    assert torch.get_device_module("jax").get_rng_state().dtype == torch.uint8
    torch.jax.set_rng_state_all([state])
    assert torch.equal(torch.jax.get_rng_state_all()[0], state)


def test_there_is_no_state_of_another_device():
    state = torch.jax.get_rng_state()
    for call in (
        lambda: torch.jax.get_rng_state("jax:1"),
        lambda: torch.jax.set_rng_state(state, 1),
        lambda: torch.Generator("jax:1"),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            call()


def test_a_state_does_not_follow_its_generator():
    torch.manual_seed(0)
    state = torch.jax.get_rng_state()
    kept = state.clone()
    draw()
    assert torch.equal(state, kept)
    torch.jax.set_rng_state(state)
    first = draw()
    state.fill_(7)
    torch.jax.set_rng_state(kept)
    assert draw() == first


def _raise() -> None:
    raise KeyError("in the middle")


@pytest.mark.parametrize("leave", [lambda: None, _raise])
@pytest.mark.parametrize("options", [{}, {"devices": [0]}, {"device_type": "jax"}])
def test_fork_rng_restores(leave, options):
    torch.manual_seed(1)
    before = torch.jax.get_rng_state(), torch.get_rng_state()
    try:
        with torch.random.fork_rng(**options):
            torch.manual_seed(2)
            draw(), torch.rand(2)
            leave()
    except KeyError:
        pass
    assert torch.equal(torch.jax.get_rng_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("device", KINDS)
def test_what_seeds_and_states_are_refused(device):
    generator = torch.Generator(device)
    for seed, error in (("a", RuntimeError), (1.5, RuntimeError), (1 << 64, ValueError)):
        with pytest.raises(error):
            generator.manual_seed(seed)
    for state, kind in ((torch.zeros(16), TypeError), (None, TypeError)):
        with pytest.raises(kind):
            generator.set_state(state)
    with pytest.raises(RuntimeError, match="size"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))
    assert generator.manual_seed(-1).initial_seed() == (1 << 64) - 1


# --- generators -----------------------------------------------------------------------------------


def _through_a_file(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


COPIES = {
    "clone_state": lambda g: g.clone_state(),
    "pickle": lambda g: pickle.loads(pickle.dumps(g)),
    "deepcopy": copy.deepcopy,
    "deepcopy inside": lambda g: copy.deepcopy({"g": [g]})["g"][0],
    "torch.save": lambda g: _through_a_file(g, weights_only=False),
    "state": lambda g: torch.Generator(g.device).set_state(g.get_state()),
    "state in a file": lambda g: torch.Generator(g.device).set_state(
        _through_a_file({"rng": g.get_state()}, weights_only=True)["rng"]
    ),
}


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_goes_on_by_itself_from_where_the_generator_stands(how, device):
    generator = torch.Generator(device).manual_seed(3)
    draw(generator)
    other = COPIES[how](generator)
    assert other is not generator and other.device == generator.device
    expected = [draw(generator), draw(generator)]
    assert draw(other) == expected[0]  # drawing from one did not move the other
    assert draw(other) == expected[1] != expected[0]
    assert other.manual_seed(9).initial_seed() == 9 and generator.initial_seed() == 3


def test_a_generator_is_loaded_with_weights_only():
    generator = torch.Generator("jax").manual_seed(3)
    other = _through_a_file({"g": generator}, weights_only=True)["g"]
    assert draw(other) == draw(generator)


def test_a_class_of_the_users_may_be_a_generator():
    class Mine(torch.Generator):
        pass

    assert type(Mine().manual_seed(1)) is Mine and isinstance(Mine(), torch.Generator)
    assert not isinstance(torch.Generator("jax"), Mine)


def test_generators_are_apart_from_one_another_and_the_default_one():
    torch.manual_seed(0)
    plain = [draw(), draw()]
    one, two = (torch.Generator("jax").manual_seed(5) for _ in range(2))
    torch.manual_seed(0)
    mixed = [draw(), draw(one), draw(two), draw()]
    assert [mixed[0], mixed[3]] == plain
    assert mixed[1] == mixed[2]
    torch.manual_seed(77)
    assert draw(one) == draw(two) != mixed[1]


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize(
    "call",
    [
        lambda g: torch.randn(5, device="jax", generator=g),
        lambda g: torch.randint(0, 100, (5,), device="jax", generator=g),
        lambda g: torch.randperm(9, device="jax", generator=g),
        lambda g: torch.bernoulli(torch.full((9,), 0.5, device="jax"), generator=g),
        lambda g: torch.multinomial(torch.ones(9, device="jax"), 4, generator=g),
        lambda g: torch.empty(5, device="jax").uniform_(generator=g),
        lambda g: torch.empty(5, device="jax").exponential_(generator=g),
        lambda g: nn.init.kaiming_uniform_(torch.empty(3, 3, device="jax"), generator=g),
    ],
)
def test_each_random_operator_takes_generators_of_both_devices(call, device):
    generator = torch.Generator(device).manual_seed(1)
    default = torch.jax.get_rng_state(), torch.get_rng_state()
    first, second = call(generator).tolist(), call(generator).tolist()
    assert call(generator.manual_seed(1)).tolist() == first != second
    assert torch.equal(default[0], torch.jax.get_rng_state())
    assert torch.equal(default[1], torch.get_rng_state())


@pytest.mark.parametrize("device", KINDS)
def test_what_is_no_generator_is_refused(device):
    for wrong in (5, "jax", torch.jax.get_rng_state()):
        with pytest.raises(TypeError):
            torch.rand(2, device=device, generator=wrong)


# --- executors ------------------------------------------------------------------------------------

outside = torch.Generator("jax")
host = torch.Generator()
saved = torch.Generator("jax").manual_seed(123).get_state()
DROPOUT = nn.Dropout(0.5)


def _many(x):
    parts = [torch.rand(3, device="jax"), torch.randn_like(x), F.dropout(x, 0.5), DROPOUT(x)]
    parts += [torch.randperm(5, device="jax"), torch.randint(0, 9, (3,), device="jax")]
    parts += [torch.empty(3, device="jax").normal_(), torch.bernoulli(torch.sigmoid(x))]
    return torch.cat([part.float() for part in parts])


def _of_generators(x):
    drawn = [torch.rand(3, device="jax", generator=g) for g in (outside, host, outside, None)]
    return torch.cat([*drawn, x])


def _seeded_inside(x):
    before = torch.rand_like(x)
    torch.manual_seed(3)
    return torch.cat([before, torch.rand_like(x)])


def _put_back(x):
    state = outside.get_state()
    first = torch.rand(3, device="jax", generator=outside)
    outside.set_state(state)
    return torch.cat([first, torch.rand(3, device="jax", generator=outside)])


def _put_to_a_state_from_outside(x):
    outside.set_state(saved)
    return torch.rand(3, device="jax", generator=outside) + torch.rand(3, device="jax")


def _put_to_a_copy_of_a_state(x):
    state = outside.get_state().clone()
    first = torch.rand(3, device="jax", generator=outside)
    outside.set_state(state)
    return torch.cat([first, torch.rand(3, device="jax", generator=outside)])


def _of_a_clone(x):
    clone = outside.clone_state()
    drawn = [torch.rand(3, device="jax", generator=g) for g in (clone, outside, clone, outside)]
    return torch.cat(drawn)


def _of_the_state_of_another(x):
    torch.rand(3, device="jax", generator=outside)
    torch.jax.set_rng_state(outside.get_state())
    return torch.rand(3, device="jax")


def _of_a_generator_made_inside(x):
    fresh = torch.Generator("jax")
    first = torch.rand(3, device="jax", generator=fresh)
    fresh.manual_seed(4)
    return torch.cat([first, torch.rand(3, device="jax", generator=fresh)])


def _forked(x):
    with torch.random.fork_rng(device_type="jax"):
        first = torch.rand(3, device="jax") + torch.rand(3).to("jax")
    return torch.cat([first, torch.rand(3, device="jax")])


def _forked_and_seeded(x):
    with torch.random.fork_rng(device_type="jax"):
        torch.manual_seed(3)
        first = torch.rand(3, device="jax") + torch.rand(3).to("jax")
    return torch.cat([first, torch.rand(3, device="jax"), torch.rand(3).to("jax")])


def _forked_on_the_device(x):
    with torch.random.fork_rng(device_type="jax"):
        torch.manual_seed(3)
        first = torch.rand(3, device="jax")
    return torch.cat([first, torch.rand(3, device="jax")])


def _of_the_seed(x):
    return torch.rand(3, device="jax", generator=outside) + outside.initial_seed() % 7


def _folded(x):
    outside.fold_in(2)
    return torch.rand(3, device="jax", generator=outside)


def _state_as_a_tensor(x):
    torch.rand(3, device="jax", generator=outside)
    return outside.get_state().to("jax").float()


EXECUTED = [
    _many, _of_generators, _seeded_inside, _put_back, _put_to_a_state_from_outside,
    _put_to_a_copy_of_a_state, _of_a_clone, _of_the_state_of_another, _of_a_generator_made_inside,
    _forked, _forked_and_seeded, _forked_on_the_device, _of_the_seed, _folded, _state_as_a_tensor,
]  # fmt: skip
REPEATED = [
    _many, _seeded_inside, _put_back, _put_to_a_copy_of_a_state, _of_a_generator_made_inside,
    _forked_on_the_device,
]  # fmt: skip
RUN = {
    _of_generators: "draws from a generator of the CPU",
    _put_to_a_state_from_outside: "the state of another, or an older one",
    _of_a_clone: "the state of another",
    _of_the_state_of_another: "the state of another",
    _of_the_seed: "reads the seed of a generator",
    _folded: "reads the seed of a generator",
}


def _history(function: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    """What calls give, with seeds set and numbers drawn in between, and every state after each."""
    torch.manual_seed(0)
    outside.manual_seed(1)
    host.manual_seed(2)
    told: list[Any] = []
    for call in range(6):
        x = torch.ones(3 if call != 3 else 4, device="jax")  # another shape is observed again
        told.append(function(x).tolist())
        told += [g.get_state().tolist() for g in (outside, host, generators.default_generator)]
        told.append(torch.get_rng_state().tolist())
        if call == 1:
            torch.manual_seed(5)
            outside.manual_seed(6)
        if call in (2, 4):
            draw(), draw(outside), torch.rand(2)
    return told


@pytest.mark.parametrize("function", EXECUTED)
@pytest.mark.slow
def test_the_same_numbers_and_the_same_states_in_every_executor(function):
    expected = _history(function)
    compiled = torch_jax.jit(function)
    assert _history(compiled) == expected
    assert _history(compiled) == expected  # where every program is there already


@pytest.mark.parametrize("function", REPEATED)
def test_the_same_numbers_and_the_same_states_without_python(function):
    expected = _history(function)
    compiled = torch_jax.jit(function, pure=True)
    assert _history(compiled) == expected
    assert _history(compiled) == expected
    assert compiled.explain().observed == 2  # of two shapes
    assert not compiled.explain().notes


@pytest.mark.parametrize(("function", "why"), RUN.items())
def test_where_a_generator_depends_on_more_than_its_own_states_python_runs(function, why):
    expected = _history(function)
    compiled = torch_jax.jit(function, pure=True)
    with pytest.warns(UserWarning, match=why):
        assert _history(compiled) == expected
    assert _history(compiled) == expected


@pytest.mark.parametrize("function", [_forked, _forked_and_seeded, _state_as_a_tensor])
def test_numbers_of_the_cpu_and_states_are_no_values_of_a_pure_function(function):
    with pytest.raises(torch_jax.NotTraceableError, match="computed on the CPU"):
        torch_jax.jit(function, pure=True)(torch.ones(3, device="jax"))


def test_another_state_or_seed_is_not_observed_anew():
    compiled = torch_jax.jit(_put_back, pure=True)
    _history(compiled)
    assert compiled.explain().observed == 2  # of two shapes


def test_an_outside_state_that_changes_is_seen():
    state = torch.Generator("jax").manual_seed(1).get_state()

    def call(x):
        outside.set_state(state)
        return x + torch.rand(3, device="jax", generator=outside)

    def results(function) -> list[Any]:
        told = []
        for seed in (1, 1, 2, 1):
            state.copy_(torch.Generator("jax").manual_seed(seed).get_state())
            told.append(function(torch.zeros(3, device="jax")).tolist())
        return told

    assert results(torch_jax.jit(call)) == results(call)
    assert results(torch_jax.jit(call, pure=True)) == results(call)


@pytest.mark.parametrize("seed", [outside.seed, torch.jax.seed, lambda: torch.seed()])
def test_a_seed_of_the_system_is_refused_in_a_pure_function(seed):
    @torch_jax.jit(pure=True)
    def call(x):
        seed()
        return x + torch.rand(3, device="jax", generator=outside)

    before = outside.get_state(), torch.jax.get_rng_state(), torch.get_rng_state()
    with pytest.raises(torch_jax.NotTraceableError, match="seed outside"):
        call(torch.ones(3, device="jax"))
    after = outside.get_state(), torch.jax.get_rng_state(), torch.get_rng_state()
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("pure", [False, True])
def test_a_call_that_fails_has_drawn_what_it_had_drawn(pure):
    def call(x):
        torch.manual_seed(7)
        torch.rand(3, device="jax", generator=outside)
        raise KeyError("in the middle")

    def states(function) -> Any:
        torch.manual_seed(3)
        outside.manual_seed(3)
        with pytest.raises(KeyError):
            function(torch.ones(3, device="jax"))
        return outside.get_state(), torch.jax.get_rng_state(), torch.get_rng_state()

    assert all(map(torch.equal, states(torch_jax.jit(call, pure=pure)), states(call)))


# --- checkpoints ----------------------------------------------------------------------------------


def _checkpointed(reentrant: bool, preserve: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Outputs and gradients of a layer with dropout, whose weights show which were dropped."""
    layer = nn.Linear(8, 8).to("jax")
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)

    def block(x):
        return F.dropout(F.dropout(layer(x), 0.5), 0.25)

    def step(x):
        layer.weight.grad = None
        y = checkpoint(block, x, use_reentrant=reentrant, preserve_rng_state=preserve)
        y = y + 0 * torch.rand_like(y)  # the backward pass begins with another state
        y.sum().backward()
        return torch.cat([y.detach(), layer.weight.grad.t()])

    return step


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.slow
def test_checkpoints_replay_the_masks_of_dropout(reentrant, preserve, compiled):
    def results(function) -> list[Any]:
        torch.manual_seed(4)
        x = torch.ones(6, 8, device="jax", requires_grad=True)
        told = []
        for _ in range(3):
            told += [function(x).tolist(), torch.jax.get_rng_state().tolist()]
        return told

    step = _checkpointed(reentrant, preserve)
    expected = results(step)
    if compiled:
        assert results(torch_jax.jit(step)) == expected
    for call in expected[::2]:
        y, gradient = torch.tensor(call).split([6, 8])
        same = torch.allclose(gradient, (y / 8).sum(0).expand(8, 8))
        assert same == preserve
    assert expected[0] != expected[2]


# --- streams --------------------------------------------------------------------------------------


KNOWN_BITS = [  # of Random123's threefry2x32 of 20 rounds: key, counter, bits
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("key, counter, bits", KNOWN_BITS)
def test_bits_are_those_of_threefry_without_a_loop(key, counter, bits):
    torch.zeros(1, device="jax")  # the device is awake
    hashed = jax.jit(threefry2x32_p.bind)
    given = [np.uint32(word) for word in key + counter]
    assert tuple(map(int, hashed(*given))) == bits
    assert "while" not in hashed.lower(*given).as_text()


def test_fold_in_is_that_of_jax():
    for seed, data in ((0, 0), (5, 3), (-1, (1 << 32) - 1), (1 << 40, 7)):
        generator = torch.Generator("jax").manual_seed(seed)
        high_low = generators.words(generator.initial_seed(), 0)[:2]
        key = jax.random.fold_in(jax.random.wrap_key_data(high_low, impl="threefry2x32"), data)
        generator.fold_in(data)
        expected = jax.random.key_data(key)
        assert generators.words(generator.initial_seed(), 0)[:2].tolist() == expected.tolist()


def test_ranks_draw_distinct_numbers_which_are_the_same_again():
    def of_rank(rank: int) -> list[float]:
        torch.manual_seed(0)
        draw()  # fold_in starts over: it matters not how many draws there were
        torch.jax.fold_in(rank)
        return draw() + draw()

    ranks = [of_rank(rank) for rank in range(4)]
    torch.manual_seed(0)
    numbers = [*draw(), *draw(), *sum(ranks, [])]
    assert len(set(numbers)) == len(numbers)
    assert [of_rank(rank) for rank in range(4)] == ranks
    generator = torch.Generator("jax").manual_seed(0).fold_in(2)
    assert draw(generator) + draw(generator) == ranks[2]
    assert isinstance(generator, torch.Generator)


@pytest.mark.parametrize("data,error", [(-1, ValueError), (1 << 32, ValueError), (1.5, TypeError)])
def test_what_cannot_be_folded_in(data, error):
    before = torch.jax.get_rng_state()
    with pytest.raises(error):
        torch.jax.fold_in(data)
    assert torch.equal(torch.jax.get_rng_state(), before)


# --- threads --------------------------------------------------------------------------------------


def _on_threads(work: Callable[[int], Any], count: int = 8) -> list[Any]:
    """What ``work(i)`` gives on threads that begin together."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(index: int) -> None:
        barrier.wait()
        results[index] = work(index)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.slow
def test_no_two_draws_of_the_default_generator_are_the_same():
    double = torch_jax.jit(lambda: torch.rand(2, dtype=torch.float64, device="jax"))
    torch.manual_seed(0)
    start = generators.default_generator.where()[1]

    def work(index: int) -> list[Any]:
        if index % 4 == 0:
            return [double() for _ in range(25)]
        return [torch.rand(2, dtype=torch.float64, device="jax") for _ in range(25)]

    drawn = sum(_on_threads(work), [])
    numbers = {tuple(x.tolist()) for x in drawn}
    assert len(numbers) == len(drawn) == 200
    assert generators.default_generator.where()[1] - start >= 200


def test_a_generator_of_each_thread_is_deterministic():
    def work(index: int) -> list[Any]:
        generator = torch.Generator("jax").manual_seed(index)
        noise = F.dropout(torch.ones(3, device="jax"))  # of the default generator, in any order
        return [draw(generator) for _ in range(10)] + [noise.shape[0]]

    assert _on_threads(work) == [work(i) for i in range(8)]


def test_seeding_and_drawing_at_once_gives_draws_of_one_seed_or_the_other():
    generator = torch.Generator("jax").manual_seed(0)
    seen: list[tuple[int, int]] = []

    def work(index: int) -> None:
        for step in range(300):
            if index == 0:
                generator.manual_seed(step % 2)
            elif index == 1:
                generator.set_state(generator.get_state())
            else:
                seen.append(generator.advance(1))

    _on_threads(work, 4)
    assert {seed for seed, _ in seen} <= {0, 1}
    assert len(seen) == 600
