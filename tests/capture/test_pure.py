"""``torch_jax.jit(pure=True)``: values read at each call, guards, and broken promises."""

from __future__ import annotations

import collections
import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_jax
from tests.support.compare import assert_same
from tests.support.jitted import assert_skipped
from tests.support.steps import batch, mlp, step_of
from tests.support.values import ones, randn
from torch_jax import DataDependentError, NotTraceableError, config

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
    with config.temporarily("jit_check_every", 3):
        for call in range(12):
            function(ones() * call)
    assert len(runs) == 7  # the 16th is due already, and then every third
    with config.temporarily("jit_check_every", 0):
        for call in range(12):
            function(ones() * call)
    assert len(runs) == 7
    assert not function.explain().notes


def test_values_of_tensors_generators_and_numbers_of_optimizers_are_read_anew():
    trained = []
    for wrap in (lambda step: step, pure):
        torch.manual_seed(0)
        model = nn.Sequential(mlp(), nn.Dropout(0.5))
        optimizer = torch.optim.AdamW(model.parameters())
        step = wrap(step_of(model, optimizer))
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
            loss = step(randn(3, 4))
        trained.append([loss.detach().cpu(), *(p.detach().cpu() for p in model.parameters())])
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-4, atol=1e-5)
    assert_skipped(step)


def test_python_s_own_values_are_fixed():
    settings = {"scale": 2.0}
    function = pure(lambda x: x * settings["scale"])
    with config.temporarily("jit_check_every", 0):
        assert function(ones()).tolist() == [2, 2, 2]
        settings["scale"] = 5.0
        assert function(ones()).tolist() == [2, 2, 2]
    function.clear_cache()
    assert function(ones()).tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.tensor([0.0, 1.0, 2.0], device="jax"), lambda x: x.new_tensor([1.0]),
        lambda x: torch.as_tensor(2.0, device="jax"), lambda x: torch.zeros(3, device="jax"),
        lambda x: torch.tensor([1.0, 2.0, 3.0]).to("jax"),
    ],
    ids=["tensor", "new_tensor", "as_tensor", "zeros", "to"],
)  # fmt: skip
def test_tensors_that_a_call_makes_are_new_at_each(make):
    def function(x):
        total = make(x)
        total += x[:1].sum()
        return total

    jitted = pure(function)
    with config.temporarily("jit_check_every", 2):
        for value in range(5):
            x = torch.full((3,), float(value), device="jax")
            assert torch.equal(jitted(x).cpu(), function(x).cpu())
    assert_skipped(jitted)


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


# --- guards ---------------------------------------------------------------------------------------


def _replaces(model):
    model[0].weight = nn.Parameter(torch.full((4, 4), 0.3, device=model[2].weight.device))


CHANGES = {
    "evaluation": lambda model: model.eval(),
    "double": lambda model: model.double(),
    "a parameter replaced": _replaces,
    "data set": lambda model: setattr(model[0].weight, "data", model[0].weight.data * 2),
    "frozen": lambda model: model[0].requires_grad_(False),
    "bias dropped": lambda model: model[0].register_parameter("bias", None),
    "loaded": lambda model: model.load_state_dict(
        {name: tensor * 2 for name, tensor in model.state_dict().items()}
    ),
    "assigned": lambda model: model.load_state_dict(
        {name: tensor * 2 for name, tensor in model.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_that_changes_between_calls(change):
    torch.manual_seed(0)
    plain = mlp("cpu")
    plain[1] = nn.Dropout(0.0)
    model = copy.deepcopy(plain).to("jax")
    x = torch.randn(3, 4)

    def run(model, x):
        model.zero_grad()
        y = model(x.to(next(model.parameters())))
        y.sum().backward()
        return y.detach(), [p.grad for p in model.parameters()]

    function = pure(lambda x: run(model, x))
    with config.temporarily("jit_check_every", 0):
        for call in range(6):
            if call == 3:
                change(model), change(plain)
            ours, theirs = function(x.to("jax")), run(plain, x)
            assert_same(ours[0], theirs[0])
            assert [g is None for g in ours[1]] == [g is None for g in theirs[1]]
            for one, other in zip(ours[1], theirs[1], strict=True):
                if other is not None:
                    assert_same(one, other, strides=False)


@pytest.mark.filterwarnings("ignore:.* its Python ran 5 times")
def test_modes_shapes_and_memories_are_guarded():
    weight = ones(3, 3).requires_grad_()
    function = pure(lambda x: x @ weight)
    cpu = weight.detach().cpu().requires_grad_()
    calls: list[tuple] = [(torch.enable_grad, (2, 3)), (torch.no_grad, (2, 3))]
    calls += [(torch.enable_grad, (4, 3)), (torch.inference_mode, (4, 3))]
    calls += [(lambda: torch.autocast("jax", dtype=torch.bfloat16), (2, 3))]
    for mode, shape in calls * 3:
        with mode():
            x = torch.arange(float(shape[0] * 3)).view(shape)
            ours, theirs = function(x.to("jax")), x @ cpu
            assert ours.requires_grad == theirs.requires_grad
            assert torch.equal(ours.float().cpu(), theirs)
    assert_skipped(function, kinds=len(calls))


def test_another_state_of_an_optimizer():
    results = []
    for device, wrap in (("cpu", lambda f: f), ("jax", pure)):
        torch.manual_seed(0)
        model = mlp("cpu").to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        step, x = wrap(step_of(model, optimizer)), torch.ones(3, 4, device=device)
        kept = None
        with config.temporarily("jit_check_every", 0):
            for call in range(8):
                if call == 3:
                    kept = copy.deepcopy(optimizer.state_dict())
                if call == 5:
                    optimizer.load_state_dict(kept)
                if call == 7:
                    head = nn.Parameter(torch.ones(2, device=device))
                    optimizer.add_param_group({"params": [head], "lr": 0.5})
                step(x)
        results.append([p.detach().cpu() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert_skipped(step, kinds=3)


def test_gradients_that_come_and_go_between_steps():
    """The backward pass is outside: a parameter may have no gradient at some steps."""
    results = []
    for device, wrap in (("cpu", lambda f: f), ("jax", pure)):
        one, two = (nn.Parameter(torch.ones(3, device=device)) for _ in range(2))
        optimizer = torch.optim.SGD([one, two], lr=0.1)

        def step(optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        step, found = wrap(step), []
        for call in range(12):
            (one * call).sum().backward()
            if call not in (5, 6, 9):
                (two * 2).sum().backward()
            step()
            found.append([p.detach().cpu().clone() for p in (one, two)])
        results.append(found)
    torch.testing.assert_close(results[1], results[0])
    assert_skipped(step, kinds=2)


# --- the promise, audited -------------------------------------------------------------------------


SETTINGS: dict[str, Any] = {}
BROKEN = {
    "a number": (lambda x: x * SETTINGS["n"], {"n": 2.0}, {"n": 5.0}, "was given 5.0"),
    "an operator": (lambda x: SETTINGS["f"](x), {"f": torch.sin}, {"f": torch.cos}, "aten::cos"),
    "a tensor": (lambda x: x * SETTINGS["w"], {"w": 1}, {"w": 7}, "another tensor"),
    "fewer operators": (lambda x: (x + 1) * 2 if SETTINGS["n"] else x + 1, {"n": 1}, {"n": 0}, ""),
    "what it returns": (lambda x: (x * 2, SETTINGS["n"]), {"n": 1}, {"n": 2}, "it returned 2"),
    "where a view begins": (lambda x: x[SETTINGS["n"] :][:1] * 2, {"n": 0}, {"n": 1}, ""),
}


@pytest.mark.parametrize("audit", ["warn", "error"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_promise_that_does_not_hold_is_found_out(name, audit):
    function, before, after, words = BROKEN[name]
    if name == "a tensor":
        before, after = ({"w": ones() * one["w"]} for one in (before, after))
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


def _kept(x):
    SETTINGS["last"] = x * 2
    return x


def _in_an_object(x):
    return collections.UserList([x * 2])


CANNOT = {
    "kept": (_kept, "is kept somewhere"),
    "an object": (_in_an_object, "returns a UserList"),
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


MAKES = {
    "zeros": lambda device: torch.zeros(3, device=device),
    "computed": lambda device: torch.ones(3, 3, device=device).triu().sum(0),
    "of a list": lambda device: torch.tensor([1.0, 2.0, 3.0], device=device),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_cache_that_the_first_call_fills(make):
    cache: dict[int, torch.Tensor] = {}

    @pure
    def function(x):
        if len(x) not in cache:
            cache[len(x)] = make("jax")
        return x * cache[len(x)]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in range(9):
            assert torch.equal(function(ones() * value).cpu(), make("cpu") * value)
    assert not function.explain().notes and function.explain().observed <= 2


def test_numpy_arrays_as_arguments_run_python():
    function = pure(lambda x, y: x * float(y[0]))
    with pytest.warns(UserWarning, match="torch.from_numpy") as caught:
        function(ones(), np.ones(2))
    assert caught[0].filename == __file__
    for value in range(3):
        assert function(ones(), np.full(2, float(value))).tolist() == [value] * 3


# --- values that are looked at --------------------------------------------------------------------

VALUES = {
    "item": (lambda x: x * x.sum().item(), "torch.where"),
    "tolist": (lambda x: x.tolist(), "return it"),
    "cpu": (lambda x: x.cpu(), "return it"),
    "if": (lambda x: x if x.sum() > 0 else -x, "torch.where"),
    "index": (lambda x: [1, 2, 3, 4][x.sum().long()], "return it"),
    "format": (lambda x: f"{x.sum():.3f}", "return it"),
}


@pytest.mark.parametrize("function, advice", VALUES.values(), ids=VALUES)
def test_a_value_that_is_looked_at_is_an_error_with_the_line(function, advice):
    jitted = pure(lambda x: function(x))
    for _ in range(2):
        with pytest.raises(DataDependentError, match="Drop pure=True") as caught:
            jitted(ones())
        assert __file__ in str(caught.value) and advice in str(caught.value)


@pytest.mark.parametrize(
    "function", [lambda x: x[x > 0], lambda x: x.nonzero(), torch.unique, lambda x: str(x)]
)
def test_operators_that_look_at_values_run_their_python(function):
    jitted = pure(lambda x: function(x))
    with pytest.warns(UserWarning, match="looks? at a value|is looked at"):
        jitted(ones())
    for x in ([1.0, 0.0], [0.0, 0.0]):
        ours, theirs = jitted(torch.tensor(x, device="jax")), function(torch.tensor(x))
        assert "device" in ours if isinstance(ours, str) else torch.equal(ours.cpu(), theirs)


def test_a_step_that_fails_leaves_what_it_has_done_until_then():
    weight = nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=1.0)
    step = step_of(nn.Identity(), optimizer)
    jitted = pure(lambda: step(weight).item())
    with pytest.raises(DataDependentError):
        jitted()
    assert weight.tolist() == pytest.approx([1 / 3] * 3)
    assert type(optimizer.param_groups[0]["lr"]) is float


def _adds_on_the_cpu(x, total=torch.zeros(3)):  # noqa: B008
    total += 1
    return x


def test_cpu_tensors_are_neither_written_nor_looked_at():
    on_cpu = torch.ones(3)
    cases = [_adds_on_the_cpu, lambda x: on_cpu.fill_(2), lambda x: x + (on_cpu * 2).to("jax")]
    for function in cases:
        with pytest.raises(NotTraceableError, match="drop pure=True"):
            pure(function)(ones())
    assert on_cpu.tolist() == [1, 1, 1]
    with pytest.raises(DataDependentError, match="on the CPU is asked for"):
        pure(lambda x: x * on_cpu.sum().item())(ones())


@pytest.mark.parametrize("first", ["good", "bad"])
def test_an_index_out_of_range_raises_and_leaves_tensors_alone(first):
    table = nn.Embedding(4, 2).to("jax")
    step = pure(step_of(table, torch.optim.SGD(table.parameters(), lr=0.1)))
    good, bad = (torch.tensor([0, n], device="jax") for n in (3, 9))
    for _ in range(3):
        if first == "good":
            step(good)
        before = table.weight.detach().cpu().clone()
        with pytest.raises(IndexError):
            step(bad)
        assert torch.equal(table.weight.detach().cpu(), before)
        step(good)
        assert not torch.equal(table.weight.detach().cpu(), before)


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
def test_draws_are_those_of_the_plain_function(function):
    def draw(function):
        torch.manual_seed(1)
        GENERATOR.manual_seed(2)
        found = []
        for _ in range(6):
            found += torch.utils._pytree.tree_leaves(function(ones()))
            found.append(torch.rand(2, device="jax"))  # between the calls
        return [one.cpu() for one in found]

    jitted = pure(function)
    torch.testing.assert_close(draw(jitted), draw(function), rtol=0, atol=0)
    assert_skipped(jitted)
