"""``torch_jax.jit(pure=True)``: values that each call reads again, and broken promises."""

from __future__ import annotations

import collections
import functools
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import torch_jax
from tests.support.compare import assert_same
from tests.support.jitted import assert_skipped
from tests.support.steps import batch, mlp, step_of
from tests.support.values import ones, randn
from torch_jax import config
from torch_jax.capture import replay

pure = torch_jax.jit(pure=True)


def counted(function: Callable) -> tuple[Any, list]:
    """The function as a pure one, and a list that is as long as its Python ran often."""
    runs: list = []

    def counting(*args):
        runs.append(1)
        return function(*args)

    return pure(counting), runs


# --- values that each call reads ------------------------------------------------------------------


def test_python_runs_once_and_at_audits():
    function, runs = counted(lambda x: x * 2 + 1)
    for call in range(1, 13):
        assert function(ones() * call).tolist() == [2 * call + 1] * 3
    assert len(runs) == 4  # the first, and at the 2nd, 4th and 8th
    for every in (3, 0):
        with config.temporarily("jit_check_every", every):
            for call in range(12):
                function(ones() * call)
        assert len(runs) == 7  # the 16th is due already, and then every third
    assert not function.explain().notes


def test_a_copy_that_shares_an_array_is_of_the_tensor_of_each_call():
    memory, host = torch.zeros(3).to("jax"), torch.zeros(3)

    def copies(x):
        before, moved, longer = memory.clone(), host.to("jax"), x.clone()
        memory.copy_(x)
        longer.resize_(4)
        return before, moved, longer[:3], x.clone().t(), torch.zeros_like(x).copy_(x)

    function, runs = counted(copies)
    for call in range(4):
        host.fill_(call)
        found = function(ones() * call)
        assert [one.tolist() for one in found] == [[max(call - 1, 0)] * 3, *[[call] * 3] * 4]
        assert memory.tolist() == [call] * 3
    assert len(runs) == 3 and not function.explain().notes


@pytest.mark.parametrize("outside", [False, True])
def test_inference_tensors_are_those_of_the_function(outside):
    def mixed(x):
        with torch.inference_mode():
            doubled = x * 2
        with torch.inference_mode(False):
            return doubled, doubled[0], x.view(-1), x * 3, x.sum().view(1)

    x, function = ones(2, 3), pure(mixed)
    with config.temporarily("jit_check_every", 0), torch.inference_mode(outside):
        found = [[one.is_inference() for one in run(x)] for run in (mixed, *[function] * 2)]
    assert found == [[True, True, False, False, False]] * 3
    assert_skipped(function)


def test_one_tensor_given_twice_is_one_kind_of_call():
    function, runs = counted(lambda x, y: x * 2 + y)
    with config.temporarily("jit_check_every", 0):
        for x, y in ((ones(), ones()), *[(x, x) for x in (ones(), ones())], (ones(), ones())):
            assert function(x, y).tolist() == [3, 3, 3]
    assert len(runs) == 2


def test_a_part_that_is_returned_is_given_by_value():
    data, (function, runs) = torch.arange(6.0, device="jax"), counted(lambda x: (x * 2, x))
    with config.temporarily("jit_check_every", 0):
        for start in (0, 2, 4):
            part = data[start : start + 2]
            doubled, same = function(part)
            assert same is part
            assert doubled.tolist() == [2 * start, 2 * start + 2]
    assert len(runs) == 1


@pytest.mark.parametrize(
    "make", [lambda x: x * 2, lambda x: x[:1], lambda x: torch.zeros(2, device="jax")]
)
def test_a_tensor_that_is_returned_twice_is_one(make):
    function = pure(lambda x: (lambda one: {"a": one, "b": [one, one[:1]]})(make(x)))
    for x in (ones(), ones(), ones().requires_grad_(), ones().requires_grad_()):
        found = function(x)
        assert found["a"] is found["b"][0] is not found["b"][1]


def test_a_view_that_is_older_than_the_call_is_returned_itself():
    memory = torch.arange(4.0, device="jax")
    held = memory[1:3]
    function = pure(lambda x: (memory.add_(x), held, memory[1:3], memory.data)[1:])
    for call in range(1, 4):
        same, view, other = function(ones()[0])
        assert same is held is not view and other is not memory
        assert same.tolist() == view.tolist() == [1 + call, 2 + call]


def test_results_that_share_memory_share_it_in_later_calls():
    function, runs = counted(lambda x: (lambda y: (y[0], y, y[0:2]))(x * 2))
    with config.temporarily("jit_check_every", 0):
        for _ in range(3):
            row, whole, rows = function(ones(3, 2))
            rows.add_(1)
            row.mul_(2)
            assert whole.tolist() == [[6, 6], [3, 3], [2, 2]]
    assert len(runs) == 1


def test_parts_that_overlap_are_given_by_value_together():
    """Inputs and targets of a language model are two windows on one text."""
    text, (function, runs) = torch.arange(20.0, device="jax"), counted(lambda x, y: (x * y, y))
    with config.temporarily("jit_check_every", 0):
        for start in (0, 3, 11):
            x, y = text[start : start + 4], text[start + 1 : start + 5].view(2, 2)
            product, same = function(x.view(2, 2), y)
            assert same is y
            assert product.tolist() == (x * y.view(-1)).view(2, 2).tolist()
        assert len(runs) == 1
        x, y = text[2:5], text[3:6]
        pure(lambda x, y: y.add_(x + 0))(x, y)
    assert text.tolist() == [0, 1, 2, 5, 7, 9, *range(6, 20)] and y._version == 1


def test_values_of_tensors_generators_and_numbers_of_optimizers_are_read_anew(agree):
    def program(compile):
        model = nn.Sequential(mlp(), nn.Dropout(0.5))
        optimizer = torch.optim.AdamW(model.parameters())
        step = compile(step_of(model, optimizer))
        for call in range(14):
            group = optimizer.param_groups[0]
            group["lr"], group["betas"] = 0.1 / (call + 1), (0.8, 0.9 + call / 1000)
            group["weight_decay"] = 0.01 * (call % 3 + 1)
            if call == 9:
                torch.manual_seed(7)
                group["lr"] = 1  # no float
            if call == 11:
                with torch.no_grad():
                    model[0][0].weight.mul_(0.5)
            yield step(randn(3, 4)).detach(), list(model.parameters())

    agree(program, tolerance=1e-4)


def test_python_s_own_values_are_fixed():
    settings = {"scale": 2.0}
    function = pure(lambda x: x * settings["scale"])
    with config.temporarily("jit_check_every", 0):
        assert function(ones()).tolist() == [2, 2, 2]
        settings["scale"] = 5.0
        assert function(ones()).tolist() == [2, 2, 2]
    function.clear_cache()
    assert function(ones()).tolist() == [5, 5, 5]


MAKES = {
    "tensor": lambda x: torch.tensor([0.0, 1.0, 2.0], device=x.device),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "as_tensor": lambda x: torch.as_tensor(2.0, device=x.device),
    "zeros": lambda x: torch.zeros(3, device=x.device),
    "to": lambda x: torch.tensor([1.0, 2.0, 3.0]).to(x.device),
    "computed": lambda x: torch.ones(3, 3, device=x.device).triu().sum(0),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_tensors_that_a_call_makes_are_new_at_each(make, agree):
    def program(compile):
        def function(x):
            total = make(x)
            total += x[:1].sum()
            return total

        function = compile(function)
        with config.temporarily("jit_check_every", 2):
            for value in range(5):
                yield function(ones() * value)

    agree(program)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_cache_that_the_first_call_fills(make):
    cache: dict[int, torch.Tensor] = {}

    @pure
    def function(x):
        if len(x) not in cache:
            cache[len(x)] = make(x)
        return x * cache[len(x)]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in range(9):
            x = torch.full((3,), float(value))
            assert torch.equal(function(x.to("jax")).cpu(), x * make(x))
    assert not function.explain().notes and function.explain().observed <= 2


def test_one_program_until_the_steady_state(nothing_is_remembered):
    with config.temporarily("cache", False):
        model = mlp()
        step = pure(step_of(model, torch.optim.AdamW(model.parameters(), lr=0.123)))
        step(batch())
        whole = step.explain().observed_programs
        for _ in range(6):
            step(batch())
        told = step.explain()
    assert told.observed == 1 and told.observed_programs == whole
    assert told.recorded_programs.made == 0, told


def test_a_cpu_tensor_is_read_at_each_call():
    found = torch.zeros(3)
    function = pure(lambda x, y: x + found.to("jax") + y.to("jax"))
    for value in range(5):
        found.fill_(value)
        assert function(ones(), torch.full((3,), 2.0 * value)).tolist() == [1 + 3 * value] * 3
    assert_skipped(function)


# --- the promise, audited -------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {}


def _or_a_sum(y):
    """Read a tensor from before or a result, which have one number among their likes."""
    total = y + SETTINGS["w"]
    return y * (SETTINGS["w"] if SETTINGS["n"] else total)


BROKEN = {
    "a number": (lambda x: x * SETTINGS["n"], {"n": 2.0}, {"n": 5.0}, "was given 5.0"),
    "an operator": (lambda x: SETTINGS["f"](x), {"f": torch.sin}, {"f": torch.cos}, "aten::cos"),
    "a tensor": (lambda x: x * SETTINGS["w"], {"w": 1}, {"w": 7}, "another tensor"),
    "a result": (lambda x: _or_a_sum(x * 2), {"w": 1, "n": 1}, {"w": 1, "n": 0}, "another tensor"),
    "beside constants": (
        lambda x: (torch.block_diag(x, x), x * SETTINGS["w"]),
        {"w": 1},
        {"w": 7},
        "aten::mul",
    ),
    "fewer operators": (lambda x: (x + 1) * 2 if SETTINGS["n"] else x + 1, {"n": 1}, {"n": 0}, ""),
    "what it returns": (lambda x: (x * 2, SETTINGS["n"]), {"n": 1}, {"n": 2}, "it returned 2"),
    "a constant that it returns": (
        lambda x: (x * 2, torch.tensor([SETTINGS["n"]]).to("jax")),
        {"n": 1},
        {"n": 2},
        "it returned a tensor",
    ),
    "where a view begins": (lambda x: x[SETTINGS["n"] :][:1] * 2, {"n": 0}, {"n": 1}, ""),
}


@pytest.mark.parametrize("audit", ["warn", "error"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_promise_that_does_not_hold_is_found_out(name, audit):
    function, before, after, words = BROKEN[name]
    if "w" in before:
        kept = {w: ones() * w for w in {before["w"], after["w"]}}
        before, after = (one | {"w": kept[one["w"]]} for one in (before, after))
    SETTINGS.update(before)
    x = torch.arange(3.0, device="jax")
    jitted = torch_jax.jit(lambda x: function(x), pure=True, audit=audit)
    for _ in range(2):
        jitted(x)
    SETTINGS.update(after)
    jitted(x)
    if audit == "error":
        with pytest.raises(torch_jax.VerificationError, match=f"is not pure.*{words}"):
            jitted(x)
        return
    with pytest.warns(UserWarning, match=f"is not pure.*{words}") as caught:
        jitted(x)
    assert caught[0].filename == __file__
    SETTINGS.update(before)
    before_that = jitted.explain().recorded
    for _ in range(2):
        assert str(jitted(x)) == str(function(x))
    assert jitted.explain().recorded == before_that + 2
    assert "Python runs at each call" in str(jitted.explain())


class _Doubles(nn.Module):
    """A module whose method reads a flag, and is not called as a module is."""

    def forward(self, x):
        return x * 2 if self.training else x

    @pure
    def decorated(self, x):
        return self.forward(x)


@pytest.mark.parametrize(
    "made",
    [
        lambda module: pure(module.forward),
        lambda module: pure(torch.no_grad()(module.forward)),
        lambda module: module.decorated,
        lambda module: functools.partial(pure(_Doubles.forward), module),
    ],
)
def test_a_method_notices_the_mode_of_its_own_module(made):
    module = _Doubles()
    function, found = made(module), []
    for call in range(8):  # no audit is due at those with another mode
        module.train(call not in (4, 5))
        found.append(function(ones()).tolist()[0])
    assert found == [2, 2, 2, 2, 1, 1, 2, 2]


def test_a_mode_that_a_later_call_leaves_is_found_out():
    wants = [True]
    function = pure(lambda x: (x * 2, torch.set_grad_enabled(wants[0]))[0])
    try:
        for _ in range(3):
            function(ones())
        wants[0] = False
        with pytest.warns(UserWarning, match="leaves a mode"):
            function(ones())
    finally:
        torch.set_grad_enabled(True)


def _kept(x):
    SETTINGS["last"] = x * 2
    return x


CANNOT = {
    "kept": (_kept, "is kept somewhere"),
    "an object": (lambda x: collections.UserList([x * 2]), "returns a UserList"),
    "made on the CPU": (lambda x: (x, torch.ones(3)), "makes on the CPU"),
    "a mode": (lambda x: (x * 2, torch.set_grad_enabled(False))[0], "leaves a mode"),
}


@pytest.mark.parametrize("function, words", CANNOT.values(), ids=CANNOT)
def test_what_cannot_be_repeated_runs_its_python_and_says_so_once(function, words):
    jitted, runs = counted(function)
    try:
        with pytest.warns(UserWarning, match=f"cannot skip its Python: .*{words}") as caught:
            for _ in range(2):  # the first may fill a cache
                jitted(ones())
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for value in range(3):
                jitted(ones() * value)
    finally:
        torch.set_grad_enabled(True)
    assert len(runs) == 5


def test_a_call_that_cannot_be_repeated_looks_for_no_garbage(monkeypatch):
    """The look takes long, and each number is a first call: it may fill a cache."""
    weight, looks = ones(), []
    monkeypatch.setattr(replay, "gc", SimpleNamespace(collect=looks.append))

    @pure
    def decay(x, by):
        weight.data = weight.data * by + x * (1 - by)
        return weight.sum()

    for call in range(3):
        decay(ones(), 1 / (call + 2))
    assert not looks and weight.tolist() == ones().tolist()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.tensor(0.5).sqrt(),
        lambda x: x / torch.prod(torch.tensor(x.size())),
        lambda x: x * torch.as_tensor([1.0, 2.0]).cumsum(0).to(x.device),
        lambda x: rnn.pack_padded_sequence(x.view(1, 2) * 3, [1, 1]).data,
    ],
    ids=["number", "sizes", "list", "lengths"],
)
def test_what_the_cpu_computes_of_pythons_data_is_a_constant(function):
    jitted, x = pure(function), torch.tensor([2.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in range(5):
            assert_same(jitted((x * scale).to("jax")), function(x * scale))


@pytest.mark.parametrize("made", [torch.tensor, lambda n: torch.from_numpy(np.full(3, n))])
def test_an_audit_compares_what_the_cpu_makes(made):
    def function(x):
        return x * made(numbers[-1]).to(x.device)

    jitted, numbers = pure(function), [2.0]
    for _ in range(3):
        jitted(ones())
    numbers.append(3.0)
    with pytest.warns(UserWarning, match="read another tensor than before, or other values"):
        assert jitted(ones())[0] == 3
    assert jitted(ones())[0] == 3


def test_numpy_arrays_as_arguments_run_python():
    function = pure(lambda x, y: x * float(y[0]))
    with pytest.warns(UserWarning, match="torch.from_numpy") as caught:
        function(ones(), np.ones(2))
    assert caught[0].filename == __file__
    for value in range(3):
        assert function(ones(), np.full(2, float(value))).tolist() == [value] * 3


# --- randomness -----------------------------------------------------------------------------------


def _seeds(x):
    torch.manual_seed(3)
    return x + torch.rand(3, device="jax")


def _goes_back(x):
    state = torch.jax.get_rng_state()
    one = torch.rand(3, device="jax")
    torch.jax.set_rng_state(state)
    return one - torch.rand(3, device="jax"), torch.rand(3, device="jax") * x


def _forks(x):
    with torch.random.fork_rng(device_type="jax"):
        torch.manual_seed(5)
        inner = torch.rand(3, device="jax")
    return inner, torch.rand(3, device="jax") * x


GENERATOR = torch.Generator("jax")
DRAWS = {
    "rand": lambda x: x * torch.rand(3, device="jax") + torch.randn(3, device="jax"),
    "dropout": lambda x: nn.functional.dropout(x, 0.5),
    "a generator": lambda x: x * torch.rand(3, device="jax", generator=GENERATOR),
    "seeds": _seeds,
    "goes back": _goes_back,
    "forks": _forks,
}


@pytest.mark.parametrize("function", DRAWS.values(), ids=DRAWS)
def test_draws_are_those_of_the_plain_function(function, agree):
    def program(compile):
        GENERATOR.manual_seed(2)
        draw = compile(lambda x: function(x))
        for _ in range(6):
            yield draw(ones()), torch.rand(2, device="jax")  # between the calls

    agree(program, tolerance=0)


def _goes_back_there(generator):
    state = generator.get_state()
    torch.rand(1, generator=generator, device="jax")
    generator.set_state(state)


def _draws_there(generator):
    torch.rand(1, generator=generator)


MOVES = {
    "draws": lambda _generator: None,
    "seeds": lambda generator: generator.manual_seed(3),
    "goes back": _goes_back_there,
    "makes": lambda _generator: torch.Generator().manual_seed(3),
    "draws on the CPU": _draws_there,
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_python_runs_where_a_generator_of_the_cpu_draws(move):
    def drawn(compile):
        generator = torch.Generator().manual_seed(2)
        run = compile(lambda: torch.rand(2, generator=move(generator) or generator, device="jax"))
        return [run().tolist() for _ in range(4)]

    with pytest.warns(UserWarning, match="draws from a generator of the CPU"):
        found = drawn(torch_jax.jit(pure=True))
    assert found == drawn(lambda run: run)


def test_other_parts_and_hooks_of_a_called_module_run_its_python_again():
    class Scaled(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * sum(self.buffers(recurse=False), 1)

    model, x = Scaled(nn.Linear(2, 2), nn.Linear(2, 2)).to("jax"), torch.ones(2, device="jax")
    run = torch_jax.jit(lambda x: model(x), pure=True)
    hook = model[0].register_forward_hook(lambda _module, _args, result: result * 2)

    def other_hook():
        hook.remove()
        model[0].register_forward_hook(lambda _module, _args, result: result * 3)

    changes = (
        lambda: setattr(model, "1", nn.Linear(2, 2).to("jax")),
        lambda: model.append(nn.Tanh()),
        lambda: model.register_buffer("scale", torch.full((), 2.0, device="jax")),
        other_hook,
    )
    for change in changes:
        for _ in range(4):
            torch.testing.assert_close(run(x), model(x))
        change()
        torch.testing.assert_close(run(x), model(x))


def test_hooks_of_parameters_and_optimizers_run_the_python_again():
    layer, x = nn.Linear(2, 2).to("jax"), torch.ones(2, device="jax")
    optimizer, steps = torch.optim.SGD(layer.parameters(), lr=0.5), []

    @torch_jax.jit(pure=True)
    def step(x):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()
        return layer.bias.grad

    for _ in range(4):
        assert step(x).tolist() == [1, 1]
    hook = layer.bias.register_hook(lambda gradient: gradient * 2)
    assert step(x).tolist() == [2, 2]
    hook.remove()
    for _ in range(4):
        assert step(x).tolist() == [1, 1]
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    step(x)
    assert steps == [1]


def test_a_graph_of_torch_compile_in_a_pure_function_is_found_again():
    model = torch.compile(nn.Linear(2, 2).to("jax"), backend="jax")
    run = torch_jax.jit(lambda x: model(x), pure=True)
    for _ in range(4):
        run(torch.ones(2, device="jax"))
    assert "1 calls were observed" in str(run.explain())
