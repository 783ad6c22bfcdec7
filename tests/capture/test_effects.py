"""Functions under ``torch_jax.jit`` write, return and leave the same as plain functions."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.jitted import assert_run, assert_skipped, both
from tests.support.values import ones, randn
from torch_jax.memory.storage import memory_of

# --- gradients ------------------------------------------------------------------------------------


def gradient_step(model: nn.Module, pure: bool) -> Any:
    @torch_jax.jit(pure=pure)
    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


@both
def test_gradients_that_are_kept_keep_their_values(pure):
    """The gradient itself, a view of it, and what was detached from it."""
    model = nn.Linear(3, 2).to("jax")
    step = gradient_step(model, pure)
    kept, values = [], []
    for value in range(1, 6):
        step(ones(4, 3) * value)
        gradient = model.weight.grad
        kept.append((gradient, gradient[0], gradient.detach())[value % 3])
        values.append(kept[-1].cpu().clone())
    for tensor, value in zip(kept, values, strict=True):
        assert torch.equal(tensor.cpu(), value)
    assert_run(step, pure)


@both
def test_gradients_add_up_over_calls_until_somebody_drops_them(pure):
    plain = nn.Linear(3, 2).to("jax")
    model = copy.deepcopy(plain)

    def add(model, x):
        model(x).square().mean().backward()

    compiled = torch_jax.jit(lambda x: add(model, x), pure=pure)
    for value in range(12):
        for run, of in ((compiled, model), (lambda x: add(plain, x), plain)):
            if value == 5:
                of.zero_grad()
            elif value == 7:
                of.weight.grad = None
            elif value == 9:
                of.zero_grad(set_to_none=False)
            run(ones(4, 3) * value)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())
    if pure:  # with gradients of before, without, and with that of the bias alone
        assert_skipped(compiled, kinds=3)


@both
def test_gradients_of_arguments(pure):
    @torch_jax.jit(pure=pure)
    def function(x):
        (x * x).sum().backward()
        return x.grad

    for value in (1.0, 2.0, 3.0, 4.0):
        x = (ones() * value).requires_grad_()
        gradient = function(x)
        assert x.grad is gradient
        assert x.grad.tolist() == [2 * value] * 3


# --- writes to arguments, views and aliases -------------------------------------------------------


@both
def test_arguments_written_in_place(pure):
    @torch_jax.jit(pure=pure)
    def function(x, y):
        x.add_(1)
        y[1:].mul_(x[0])
        return x + 0

    x, y = ones(), ones()
    for _ in range(4):
        function(x, y)
    assert x.tolist() == [5, 5, 5]
    assert y.tolist() == [1, 120, 120]
    assert x._version == 4
    assert_run(function, pure)


@both
def test_an_argument_that_is_a_view_is_written_through(pure):
    @torch_jax.jit(pure=pure)
    def function(x):
        x.add_(1)

    base = torch.zeros(2, 3, device="jax")
    for _ in range(3):
        function(base[:, 1])
    assert base.tolist() == [[0, 3, 0], [0, 3, 0]]
    for count in (1, 2, 3):
        function(base.t())
        assert base.tolist() == [[count, 3 + count, count]] * 2


@both
def test_two_arguments_that_share_memory(pure):
    def function(x, y):
        x.add_(1)
        return y * 2

    compiled = torch_jax.jit(function, pure=pure)
    base, other = ones(), ones()
    for _ in range(3):
        ours, theirs = ((base, other), (base.cpu(), other.cpu()))
        for pick in (
            lambda b, o: (b, o), lambda b, o: (b, b), lambda b, o: (b[:2], b[1:]),
            lambda b, o: (o, b),
        ):  # fmt: skip
            assert torch.equal(compiled(*pick(*ours)).cpu(), function(*pick(*theirs)))
        assert torch.equal(base.cpu(), theirs[0])


@both
@pytest.mark.filterwarnings("ignore:.* its Python ran 5 times")
def test_an_argument_that_is_also_captured(pure):
    weight = ones()

    @torch_jax.jit(pure=pure)
    def function(x):
        weight.add_(1)
        return x * 2

    for count in (0, 4, 8):
        assert function(ones()).tolist() == [2, 2, 2]
        assert function(weight).tolist() == [6 + 2 * count] * 3
        assert function(ones()).tolist() == [2, 2, 2]
        assert function(weight[:2]).tolist() == [10 + 2 * count] * 2
    for _ in range(2):
        x = ones()
        assert function(x).tolist() == [2, 2, 2] and x.tolist() == [1, 1, 1]
    if pure:
        assert not function.explain().notes


def test_an_argument_that_was_captured_as_well_is_found_out_at_the_first_other():
    weight = ones()

    @torch_jax.jit(pure=True)
    def function(x):
        weight.add_(1)
        return x * 2

    for count in range(2, 5):
        assert function(weight).tolist() == [2 * count] * 3
    x = ones()
    with pytest.warns(UserWarning, match="is not pure"):
        assert function(x).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


@both
def test_results_that_are_views_stay_views(pure):
    weight = nn.Parameter(ones(2, 3))

    @torch_jax.jit(pure=pure)
    def function(x):
        y = x * 2
        return x, x[1:], weight.detach().t(), y, {"part": y[1:], "column": y.view(3, 1)}, weight

    for _ in range(4):
        x = ones()
        same, view, transposed, fresh, parts, parameter = function(x)
        assert same is x and parameter is weight
        view.zero_()
        assert x.tolist() == [1, 0, 0]
        transposed[0].fill_(7)
        assert weight.detach()[:, 0].tolist() == [7, 7] and transposed.shape == (3, 2)
        parts["part"].fill_(5)
        assert fresh.tolist() == parts["column"].flatten().tolist() == [2, 5, 5]
        assert x[0].item() == 1
        with torch.no_grad():
            weight.fill_(1)
    assert_run(function, pure)


@both
def test_conjugated_and_expanded_results(pure):
    function = torch_jax.jit(lambda x: (x.conj(), (x * 1).expand(2, 3), x.imag), pure=pure)
    z = torch.tensor([1 + 2j, 3j, 1], device="jax")
    for _ in range(3):
        conjugate, expanded, imaginary = function(z)
        assert torch.equal(conjugate.cpu(), z.cpu().conj())
        assert expanded.stride() == (0, 1)
        assert imaginary.tolist() == [2, 3, 0]
    imaginary.fill_(9)
    assert z.imag.tolist() == [9, 9, 9]
    assert_run(function, pure)


def _assign(cache, at, x):
    cache[:, 2:3] = x


def _put(cache, at, x):
    cache[:, at] = x


WRITES = {
    "index_copy_": lambda cache, at, x: cache.index_copy_(1, at, x),
    "slice": lambda cache, at, x: cache[:, 2:3].copy_(x),
    "assignment": _assign,
    "index_put": _put,
    "scatter": lambda cache, at, x: cache.scatter_(1, at.view(1, 1, 1).expand(2, 1, 4), x),
}


@pytest.mark.xla_default
@both
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_cache_of_keys_is_written_in_place(write, captured, pure):
    cache = torch.zeros(2, 6, 4, device="jax")
    position = torch.tensor([2], device="jax")

    def decode(x, cache, position):
        write(cache, position, x)
        return F.softmax(cache.sum((0, 2)), 0)

    if captured:
        run = torch_jax.jit(lambda x: decode(x, cache, position), pure=pure)
    else:
        jitted = torch_jax.jit(decode, pure=pure)
        run = lambda x: jitted(x, cache, position)  # noqa: E731
    for value in (1.0, 2.0, 3.0, 4.0):
        before = memory_of(cache).unsafe_buffer_pointer()
        run(ones(2, 1, 4) * value)
        if value > 1:  # no copy was made
            assert memory_of(cache).unsafe_buffer_pointer() == before
    assert cache[:, 2].tolist() == [[4.0] * 4] * 2
    assert cache.sum().item() == 32


@pytest.mark.slow
@both
def test_a_loop_that_decodes(pure):
    torch.manual_seed(0)
    embed, head = nn.Embedding(11, 4).to("jax"), nn.Linear(4, 11).to("jax")

    def decode(token, position, cache):
        cache.index_copy_(0, position, embed(token))
        seen = torch.arange(8, device="jax") <= position
        state = (cache * seen.unsqueeze(1)).sum(0)
        return head(state).argmax(-1, keepdim=True), position + 1

    def generate(step):
        token, position = torch.tensor([[3], [0]], device="jax")
        cache = torch.zeros(8, 4, device="jax")
        out = []
        with torch.no_grad():
            for _ in range(8):
                token, position = step(token, position, cache)
                out.append(token.item())
        return out, cache.cpu()

    compiled = torch_jax.jit(decode, pure=pure)
    (ours, cache), (theirs, expected) = generate(compiled), generate(decode)
    assert ours == theirs
    torch.testing.assert_close(cache, expected)
    assert_run(compiled, pure, kinds=2)  # a view at first, then results


# --- arguments that are a part of a tensor --------------------------------------------------------


def test_parts_of_a_tensor_share_one_program():
    double = torch_jax.jit(lambda x: x * 2, pure=True)
    steps = torch.arange(20, device="jax")
    assert [double(steps[i].expand(1)).item() for i in range(20)] == list(range(0, 40, 2))
    rows = torch.arange(12.0, device="jax").view(6, 2)
    for i in range(3):
        expected = rows[2 * i : 2 * i + 2].cpu() * 2
        assert torch.equal(double(rows[2 * i : 2 * i + 2]).cpu(), expected)
    assert_skipped(double, kinds=2)


@both
def test_a_part_that_is_written_changes_the_whole(pure):
    rows = torch.zeros(3, 2, device="jax")
    add = torch_jax.jit(lambda x: x.add_(1), pure=pure)
    for _ in range(3):
        assert add(rows[1]).data_ptr() == rows[1].data_ptr()
    add(rows[2])
    assert rows.tolist() == [[0, 0], [3, 3], [1, 1]]


@both
@pytest.mark.parametrize("give", [lambda x: x, lambda x: x[:1], lambda x: (x + 1, x.view(2, 1))])
def test_a_part_that_is_returned_is_that_part(give, pure):
    rows = torch.ones(3, 2, device="jax")
    function = torch_jax.jit(give, pure=pure)
    for at in (1, 1, 1, 2):
        result = function(rows[at])
        returned = result[1] if isinstance(result, tuple) else result
        returned.zero_()
        assert rows[at][0].item() == 0
        rows[at].fill_(1)
    assert rows[0].tolist() == [1, 1]


@both
@pytest.mark.filterwarnings("ignore:.* its Python ran 5 times")
def test_a_part_of_what_is_written_is_seen_written(pure):
    state = torch.zeros(3, 2, device="jax")
    other = torch.zeros(3, 2, device="jax")

    @torch_jax.jit(pure=pure)
    def step(x):
        state.add_(1)
        return x * 1

    for count in (1, 3, 5):
        assert step(other[0]).tolist() == [0, 0]
        assert step(state[count % 3]).tolist() == [count + 1] * 2


@both
def test_parts_twice_and_gradients_of_what_they_meet(pure):
    weight = torch.ones(2, device="jax", requires_grad=True)
    rows = torch.arange(6.0, device="jax").view(3, 2)
    add = torch_jax.jit(lambda x, y: ((x + y) * weight).sum(), pure=pure)
    for i, j in ((0, 1), (1, 1), (2, 1), (0, 2)):
        weight.grad = None
        add(rows[i], rows[j]).backward()
        assert weight.grad.tolist() == (rows[i] + rows[j]).tolist()


# --- threads --------------------------------------------------------------------------------------


@pytest.mark.slow
@both
@pytest.mark.filterwarnings("ignore:.*a tensor was written past the recording")
def test_other_threads_use_a_model_while_it_is_recorded(pure):
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(12)]).to("jax")
    x = randn(4, 8)
    expected = model(x).detach().cpu()
    weight = model[3].weight.detach().cpu()
    stop, failures, rounds = threading.Event(), [], []

    def use() -> None:
        try:
            while not stop.is_set():
                with torch.no_grad():
                    result, copy, host = model(x), model[3].weight.clone(), model[5].bias.cpu()
                    model[7].bias.mul_(1.0)
                torch.testing.assert_close(result.cpu(), expected)
                assert torch.equal(copy.cpu(), weight)
                assert host.shape == (8,)
                rounds.append(1)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for scale in range(10):
        function = torch_jax.jit(lambda x, scale=scale: model(x).sum() * scale, pure=pure)
        for _ in range(2):
            function(x)
    stop.set()
    for thread in threads:
        thread.join()
    assert rounds
    assert not failures, failures[0]
