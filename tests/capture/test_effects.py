"""Functions under ``torch_jax.jit`` write, return and leave the same as plain functions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.compare import assert_same
from tests.support.jitted import assert_skipped, both
from tests.support.values import ones
from torch_jax.memory.storage import memory_of

# --- gradients ------------------------------------------------------------------------------------


def gradients_that_are_kept(compile):
    model, kept = nn.Linear(3, 2).to("jax"), []

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    step = compile(step)
    for value in range(1, 9):  # no audit comes between the last of these
        loss = step(ones(4, 3) * value)
        gradient = model.weight.grad
        kept.append((gradient, gradient[0], gradient.detach())[value % 3])
        yield loss, kept


def gradients_that_add_up_until_somebody_drops_them(compile):
    model = nn.Linear(3, 2).to("jax")
    add = compile(lambda x: model(x).square().mean().backward())
    for value in range(12):
        if value in (5, 9):
            model.zero_grad(set_to_none=value == 5)
        elif value == 7:
            model.weight.grad = None
        yield add(ones(4, 3) * value), list(model.parameters())


def gradients_of_others_that_are_read_clipped_and_returned(compile):
    weight = nn.Parameter(ones())

    def function():
        norm = nn.utils.clip_grad_norm_([weight], 0.1)
        weight.grad.mul_(2)
        return norm, weight.grad * 3, weight.grad

    function = compile(function)
    for value in range(9):
        if value in (2, 4, 5, 8):
            weight.grad = None
        (weight * value).sum().backward()
        *found, gradient = function()
        yield found, gradient.clone(), gradient is weight.grad


# --- writes, views and aliases --------------------------------------------------------------------


def parts_of_parameters_that_are_written_without_gradients(compile):
    model = nn.Linear(3, 2).to("jax")

    def function(x):
        loss = model(x).square().sum()
        loss.backward()
        with torch.no_grad():
            model.bias[0] += 1
            row = model.weight[0]
            row.mul_(0.9)
            row.sub_(0.1)
            for part in model.weight.unbind(1):
                part.mul_(0.8)
        return loss

    function = compile(function)
    for value in range(6):
        model.zero_grad()
        yield function(ones(4, 3) * value), list(model.parameters())


def an_argument_that_is_also_captured(compile):
    weight = ones()

    def function(x):
        weight.add_(1)
        return x * 2

    function = compile(function)
    for _ in range(3):
        for x in (ones(), weight, ones(), weight[:2]):
            yield function(x), x, weight


def results_that_are_views(compile):
    weight = nn.Parameter(ones(2, 3))

    def function(x):
        y = x * 2
        return x, x[1:], weight.detach().t(), y, {"part": y[1:], "column": y.view(3, 1)}, weight

    function = compile(function)
    for _ in range(4):
        x = ones()
        results = function(x)
        results[1].zero_()
        results[2][0].fill_(7)
        results[4]["part"].fill_(5)
        yield results, x, weight
        with torch.no_grad():
            weight.fill_(1)


def parts_twice_and_gradients_of_what_they_meet(compile):
    weight, rows = ones(2).requires_grad_(), torch.arange(6.0, device="jax").view(3, 2)
    add = compile(lambda x, y: ((x + y) * weight).sum())
    for i, j in ((0, 1), (1, 1), (2, 1), (0, 2)):
        weight.grad = None
        add(rows[i], rows[j]).backward()
        yield weight


def a_part_that_is_returned(compile):
    for give in (lambda x: x, lambda x: x[:1], lambda x: (x + 1, x.view(2, 1))):
        rows, function = torch.ones(3, 2, device="jax"), compile(give)
        for at in (1, 1, 1, 2):
            result = function(rows[at])
            (result[1] if isinstance(result, tuple) else result).zero_()
            yield result, rows
            rows.fill_(1)


def an_older_tensor_that_no_operator_reads(compile):
    total = ones()
    function = compile(lambda x: (x + 1, total))
    for _ in range(4):
        yield function(ones()), total
        total.add_(1)


PROGRAMS = {  # and how many kinds of call there are; None: as many as there are places
    gradients_that_are_kept: 1,
    gradients_that_add_up_until_somebody_drops_them: 3,  # with all, with none, with one of two
    gradients_of_others_that_are_read_clipped_and_returned: 1,
    parts_of_parameters_that_are_written_without_gradients: 1,
    an_argument_that_is_also_captured: None,
    results_that_are_views: 1,
    parts_twice_and_gradients_of_what_they_meet: None,
    a_part_that_is_returned: None,
    an_older_tensor_that_no_operator_reads: 1,
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_is_left_behind(program, agree):
    agree(program, PROGRAMS[program])


def places(*at):
    rows = torch.arange(12.0).view(4, 3).to("jax")
    return [(rows[i],) for i in at]


def sharing():
    x, y = ones(), ones()
    return [(x, y), (x, x), (x[:2], x[1:]), (y, x)] * 3


CALLS = {
    "written": (lambda x, y: (x.add_(1), y[1:].mul_(x[0]), x + 0)[2],
                lambda: [(ones(), ones())] * 4, 1),
    "column": (lambda x: x.add_(1), lambda: [(ones(2, 3)[:, 1],)] * 3, 1),
    "transposed": (lambda x: x.add_(1), lambda: [(ones(2, 3).t(),)] * 3, 1),
    "sharing": (lambda x, y: (x.add_(1), y * 2)[1], sharing, None),
    "conjugated": (lambda x: (x.conj(), (x * 2).conj(), (x * 1).expand(2, 3), x.imag),
                   lambda: [(torch.tensor([1 + 2j, 3j, 1], device="jax"),)] * 3, 1),
    "rows": (lambda x: x * 2, lambda: places(0, 1, 2, 3), 1),
    "rows written": (lambda x: x.add_(1), lambda: places(1, 1, 1, 2), None),
    "gradients": (lambda x: ((x * x).sum().backward(), x.grad)[1],
                  lambda: [((ones() * n).requires_grad_(),) for n in range(4)], 1),
    "a gradient is there": (lambda x: (x * x).sum().backward(), lambda: [
        (x,) for n in range(3, 7) for x in [(ones() * n).requires_grad_()] * 2], 2),
}  # fmt: skip


@pytest.mark.parametrize("function, calls, kinds", CALLS.values(), ids=CALLS)
def test_calls(function, calls, kinds, agree_on_calls):
    agree_on_calls(function, calls, kinds)


def test_an_argument_that_was_captured_as_well_is_found_out_at_the_first_other():
    weight = ones()

    @torch_jax.jit(pure=True)
    def function(x):
        weight.add_(1)
        return x * 2

    for count in range(2, 6):  # the next call is no audit by its number
        assert function(weight).tolist() == [2 * count] * 3
    x = ones()
    with pytest.warns(UserWarning, match="is not pure"):
        assert function(x).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


def test_parts_of_a_tensor_share_one_program():
    double = torch_jax.jit(lambda x: x * 2, pure=True)
    steps = torch.arange(20, device="jax")
    assert [double(steps[i].expand(1)).item() for i in range(20)] == list(range(0, 40, 2))
    rows = torch.arange(12.0, device="jax").view(6, 2)
    for at in range(0, 6, 2):
        assert torch.equal(double(rows[at : at + 2]).cpu(), rows[at : at + 2].cpu() * 2)
    assert_skipped(double, kinds=2)


WRITES = {
    "index_copy_": lambda cache, at, x: cache.index_copy_(1, at, x),
    "slice": lambda cache, at, x: cache[:, 2:3].copy_(x),
    "index_put": lambda cache, at, x: cache.__setitem__((slice(None), at), x),
    "scatter": lambda cache, at, x: cache.scatter_(1, at.view(1, 1, 1).expand(2, 1, 4), x),
}


@pytest.mark.xla_default
@both
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_cache_of_keys_is_written_in_place(write, captured, pure):
    cache, position = torch.zeros(2, 6, 4, device="jax"), torch.tensor([2], device="jax")

    def decode(x, cache=cache, position=position):
        write(cache, position, x)
        return F.softmax(cache.sum((0, 2)), 0)

    run, given = torch_jax.jit(decode, pure=pure), () if captured else (cache, position)
    for value in range(1, 5):
        before = memory_of(cache).unsafe_buffer_pointer()
        run(ones(2, 1, 4) * value, *given)
        if value > 1:  # no copy was made
            assert memory_of(cache).unsafe_buffer_pointer() == before
    assert cache[:, 2].tolist() == [[4.0] * 4] * 2 and cache.sum().item() == 32


# --- effects on older tensors beside their elements -----------------------------------------------

EFFECTS = {
    "requires_grad_": lambda x, w: x.requires_grad_() if x.is_leaf else None,
    "detach_": lambda x, w: x.detach_(),
    "retain_grad": lambda x, w: x.retain_grad() if x.requires_grad else None,
    "hook": lambda x, w: x.register_hook(lambda g: g * 3) if x.requires_grad else None,
    "t_": lambda x, w: x.t_(),
    "unsqueeze_": lambda x, w: x.unsqueeze_(0),
    "resize_": lambda x, w: None if x.requires_grad else x.resize_(2, 4),
    "written with gradients": lambda x, w: x.mul_(w[0]),
    "a row is written with gradients": lambda x, w: x[0].copy_(w[0]),
    "no gradient from here on": lambda x, w: setattr(w, "grad", None),
    "another gradient": lambda x, w: setattr(w, "grad", torch.ones_like(w)),
    "data": lambda x, w: setattr(x, "data", x.data * 2),
}


@pytest.mark.parametrize("computed", [False, True], ids=["given", "computed"])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.filterwarnings("ignore:.*(cannot skip its Python|its Python ran 5 times)")
def test_effects_on_what_is_older_than_a_pure_call(effect, computed):
    """Where a call without Python could not repeat them, Python runs at each call, and says so."""

    def outcomes(device, compile):
        weight = torch.eye(4).to(device).requires_grad_()

        def function(x):
            EFFECTS[effect](x, weight)
            return (x.reshape(-1, 4) @ weight).square().sum()

        function = compile(function)
        for value in range(1, 8):
            given = torch.full((4, 4), float(value)).to(device)
            x = given.requires_grad_() * 1 if computed else given
            (function(x) + x.sum()).backward()
            grad = x.grad if x.is_leaf or x.retains_grad else None
            yield x.detach(), x.shape, x.requires_grad, x.is_leaf, grad, given.grad, weight.grad

    plain = outcomes("cpu", lambda function: function)
    pure = outcomes("jax", lambda function: torch_jax.jit(function, pure=True))
    for found, wanted in zip(pure, plain, strict=True):
        assert_same(found, wanted)


OF_ATTRIBUTES = {
    "requires_grad_": lambda x: x.requires_grad_(False),
    "requires_grad": lambda x: setattr(x, "requires_grad", False),
    "hook": lambda x: x.requires_grad and x.register_hook(lambda g: g * 3),
    "hook behind": lambda x: x.requires_grad and x.register_post_accumulate_grad_hook(_triple),
    "data": lambda x: setattr(x, "data", torch.zeros_like(x)),
}


def _triple(x):
    x.grad *= 3


@pytest.mark.parametrize("effect", OF_ATTRIBUTES)
def test_effects_on_a_tensor_that_no_operator_takes(effect):
    x, scale = ones(2), ones(2)
    function = torch_jax.jit(lambda x: (OF_ATTRIBUTES[effect](scale), x * 2)[1], pure=True)
    function(x)  # without an effect, where there are no gradients
    with pytest.warns(UserWarning, match="gets another memory, form, history, requires_grad"):
        for _ in range(4):
            scale.data, scale.grad = ones(2), None
            scale.requires_grad_()
            function(x)
            assert scale.requires_grad == (effect in ("hook", "hook behind", "data"))
            if scale.requires_grad:
                scale.square().sum().backward()
                assert scale.grad.tolist() != [2.0, 2.0]


def test_a_layer_that_is_frozen_for_a_while_is_no_effect():
    layer, x = nn.Linear(2, 2).to("jax"), ones(2).requires_grad_()

    @torch_jax.jit(pure=True)
    def step(x):
        layer.requires_grad_(False)
        x.grad = None
        layer(x).sum().backward()
        layer.requires_grad_(True)

    for _ in range(4):
        step(x)
        assert layer.weight.requires_grad and layer.weight.grad is None
    assert "observed, and serve others" in str(step.explain())


@pytest.mark.filterwarnings("ignore:.*cannot skip its Python")
def test_a_part_and_what_it_is_a_part_of():
    """An argument ``data[0:4]`` is given by value, until the function reaches ``data`` as well."""

    def outcomes(device, compile):
        data = torch.arange(12.0).to(device)

        def function(part):
            part.add_(part * 2)
            total = data.sum()
            part.mul_(0.5)
            data.add_(1)
            return total + part.sum()

        function = compile(function)
        for _ in range(6):
            yield function(data[0:4]), data

    plain = outcomes("cpu", lambda function: function)
    pure = outcomes("jax", lambda function: torch_jax.jit(function, pure=True))
    for found, wanted in zip(pure, plain, strict=True):
        assert_same(found, wanted)


def test_gradients_that_python_drops_do_not_keep_python_running(agree):
    def program(compile):
        model = nn.Linear(3, 1).to("jax")
        nn.init.constant_(model.weight, 0.5), nn.init.zeros_(model.bias)

        @compile
        def step(x):
            for parameter in model.parameters():
                parameter.grad = None
            model(x).square().sum().backward()

        for n in range(9):
            if n == 6:
                model.weight.grad = None  # as before the first call
            step(ones(2, 3) * n)
            yield [p.grad for p in model.parameters()]

    agree(program, kinds=2)
