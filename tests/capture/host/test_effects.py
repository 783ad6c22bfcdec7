"""What a function under ``torch_jax.jit`` leaves behind: the same as the plain function would."""

from __future__ import annotations

import collections
import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.values import ones


def address(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor is."""
    return tensor.untyped_storage().array.unsafe_buffer_pointer()


# --- attributes and containers --------------------------------------------------------------------


def test_a_tensor_put_into_an_attribute_is_a_fresh_one_at_each_call():
    config = types.SimpleNamespace(last=None)

    @torch_jax.jit
    def function(x):
        config.last = x * 2
        return config.last + 1

    kept = []
    for value in (1.0, 2.0, 3.0, 4.0):
        result = function(ones() * value)
        assert torch.equal((config.last + 1).cpu(), result.cpu())
        kept.append(config.last)
    assert [t[0].item() for t in kept] == [2, 4, 6, 8]


@pytest.mark.parametrize("start", [None, 0.0])
def test_an_average_kept_as_an_attribute(start):
    config = types.SimpleNamespace(mean=start)

    def function(x):
        config.mean = x if config.mean is None else config.mean * 0.5 + x * 0.5
        return config.mean

    compiled = torch_jax.jit(function)
    actual = [compiled(ones() * i).cpu() for i in range(5)]
    config.mean = start
    expected = [function(ones() * i).cpu() for i in range(5)]
    assert torch.equal(torch.stack(actual), torch.stack(expected))


def test_a_counter_goes_up_at_each_call():
    config = types.SimpleNamespace(count=0)

    @torch_jax.jit
    def function(x):
        config.count += 1
        return x * config.count

    for index in range(1, 6):
        assert function(ones()).tolist() == [index] * 3
        assert config.count == index


def test_a_counter_in_a_closure_and_one_in_a_dict():
    count, config = 0, {"count": 0}

    @torch_jax.jit
    def function(x):
        nonlocal count
        count += 1
        config["count"] += 2
        return x

    for index in range(1, 5):
        function(ones())
        assert (count, config["count"]) == (index, 2 * index)


def test_tensors_appended_to_a_list():
    history: list[torch.Tensor] = []

    @torch_jax.jit
    def function(x):
        history.append(x.sum())
        return x + 1

    for value in range(4):
        function(ones() * value)
    assert [t.item() for t in history] == [0, 3, 6, 9]


def test_a_list_that_is_read_and_grows():
    history: list[torch.Tensor] = []

    @torch_jax.jit
    def function(x):
        history.append(x)
        return sum(history)

    assert [function(ones() * i)[0].item() for i in range(4)] == [0, 1, 3, 6]


@pytest.mark.traced_at_once(fallback="record")
def test_tensors_put_into_dicts_deques_and_objects_made_inside():
    record: dict[str, Any] = {}
    recent: collections.deque = collections.deque(maxlen=2)

    @torch_jax.jit
    def function(x):
        record["loss"] = x.sum()
        record.setdefault("all", []).append(x.sum())
        recent.append(x.max())
        record["made"] = types.SimpleNamespace(value=x.min())
        return x

    for value in range(3):
        function(ones() * value)
    assert record["loss"].item() == 6
    assert [t.item() for t in record["all"]] == [0, 3, 6]
    assert [t.item() for t in recent] == [1, 2]
    assert record["made"].value.item() == 2


def test_what_is_returned_is_what_was_kept():
    config = types.SimpleNamespace(last=None)

    @torch_jax.jit
    def function(x):
        config.last = x * 2
        return {"out": config.last, "view": config.last[:2]}

    for _ in range(3):
        result = function(ones())
        assert result["out"] is config.last
        result["view"].zero_()
        assert config.last.tolist() == [0, 0, 2]


def test_history_is_returned():
    history: list[float] = []

    @torch_jax.jit
    def function(x):
        history.append(1)
        return x, history

    for index in range(1, 4):
        assert function(ones())[1] is history
        assert len(history) == index


def test_an_attribute_deleted_inside():
    config = types.SimpleNamespace(cache=None)

    @torch_jax.jit
    def function(x):
        config.cache = x * 2
        y = config.cache + 1
        del config.cache
        return y

    for _ in range(3):
        assert function(ones()).tolist() == [3, 3, 3]
        assert not hasattr(config, "cache")


def test_a_tensor_made_by_the_first_call_and_kept():
    config = types.SimpleNamespace(mask=None)

    @torch_jax.jit
    def function(x):
        if config.mask is None:
            config.mask = torch.arange(3.0, device="jax")
        return x * config.mask

    for value in (1.0, 2.0, 3.0):
        assert function(ones() * value).tolist() == [0, value, 2 * value]
    assert config.mask.tolist() == [0, 1, 2]
    assert function.explain().traces == 2, function.explain()


def test_tensors_kept_in_a_dict_by_size():
    cache: dict[int, torch.Tensor] = {}

    @torch_jax.jit
    def function(x):
        n = x.shape[0]
        if n not in cache:
            cache[n] = torch.arange(float(n), device="jax")
        return x * cache[n]

    for size in (2, 3, 2, 3, 2, 3):
        assert function(ones(size)).tolist() == [float(i) for i in range(size)]
    assert sorted(cache) == [2, 3]
    assert function.explain().traces <= 5, function.explain()


@pytest.mark.traced_at_once(fallback="record")
def test_a_tensor_kept_by_functools_cache():
    @functools.cache
    def mask(n):
        return torch.arange(float(n), device="jax")

    function = torch_jax.jit(lambda x: x * mask(3))
    for value in (1.0, 2.0, 3.0):
        assert function(ones() * value).tolist() == [0, value, 2 * value]
    assert mask(3).tolist() == [0, 1, 2]


@pytest.mark.traced_at_once(fallback="record")
def test_a_buffer_registered_by_the_first_call():
    module = nn.Identity()

    @torch_jax.jit
    def function(x):
        if not hasattr(module, "mask"):
            module.register_buffer("mask", torch.arange(3.0, device="jax"))
        module.mask.add_(1)
        return x * module.mask

    assert function(ones()).tolist() == [1, 2, 3]
    assert function(ones()).tolist() == [2, 3, 4]
    assert function(ones()).tolist() == [3, 4, 5]
    assert module.state_dict()["mask"].tolist() == [3, 4, 5]


# --- buffers and parameters -----------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), device="jax"))
        self.register_buffer("mean", torch.zeros(3, device="jax"))

    def forward(self, x):
        self.seen += 1
        self.mean = self.mean * 0.5 + x * 0.5
        return x * self.seen


def test_buffers_written_in_place_and_replaced():
    plain, compiled = Counting(), torch_jax.jit(Counting())
    for value in range(4):
        x = ones() * value
        assert torch.equal(compiled(x).cpu(), plain(x).cpu())
        assert torch.equal(compiled.mean.cpu(), plain.mean.cpu())
        assert compiled.seen.item() == value + 1
    assert set(compiled.state_dict()) == {"seen", "mean"}


def gradient_step(model: nn.Module) -> Callable:
    @torch_jax.jit
    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


def test_a_gradient_that_is_kept_keeps_its_value():
    model = nn.Linear(3, 2).to("jax")
    step = gradient_step(model)
    kept, values = [], []
    for value in (1.0, 2.0, 3.0):
        step(ones(4, 3) * value)
        kept.append(model.weight.grad)
        values.append(model.weight.grad.cpu().clone())
    assert len({id(t) for t in kept}) == 3
    for tensor, value in zip(kept, values, strict=True):
        assert torch.equal(tensor.cpu(), value)


def test_a_view_of_a_gradient_keeps_its_value():
    model = nn.Linear(3, 2).to("jax")
    step = gradient_step(model)
    step(ones(4, 3))
    step(ones(4, 3))
    view = model.weight.grad[0]
    alias = model.weight.grad.detach()
    value = view.cpu().clone()
    model.weight.grad = None
    step(ones(4, 3) * 5)
    step(ones(4, 3) * 7)
    assert torch.equal(view.cpu(), value)
    assert torch.equal(alias[0].cpu(), value)


def test_gradients_add_up_over_calls():
    plain = nn.Linear(3, 2).to("jax")
    model = copy.deepcopy(plain)

    def add(model, x):
        model(x).square().mean().backward()

    compiled = torch_jax.jit(lambda x: add(model, x))
    for value in (1.0, 2.0, 3.0, 4.0):
        compiled(ones(4, 3) * value)
        add(plain, ones(4, 3) * value)
        torch.testing.assert_close(model.weight.grad.cpu(), plain.weight.grad.cpu())


def test_gradients_of_arguments():
    @torch_jax.jit
    def function(x):
        (x * x).sum().backward()
        return x.grad

    for value in (1.0, 2.0, 3.0):
        x = (ones() * value).requires_grad_()
        gradient = function(x)
        assert x.grad is gradient
        assert x.grad.tolist() == [2 * value] * 3


def test_the_result_is_differentiable_outside():
    model = nn.Linear(3, 2).to("jax")
    forward = torch_jax.jit(lambda x: model(x))
    for value in (1.0, 2.0, 3.0):
        model.zero_grad()
        x = (ones(4, 3) * value).requires_grad_()
        forward(x).square().sum().backward()
        ours = [x.grad.cpu(), *(p.grad.cpu() for p in model.parameters())]
        model.zero_grad()
        x.grad = None
        model(x).square().sum().backward()
        theirs = [x.grad.cpu(), *(p.grad.cpu() for p in model.parameters())]
        torch.testing.assert_close(ours, theirs)


# --- writes to arguments, views and aliases -------------------------------------------------------


def test_arguments_written_in_place():
    @torch_jax.jit
    def function(x, y):
        x.add_(1)
        y[1:].mul_(x[0])
        return x + 0

    x, y = ones(), ones()
    for _ in range(3):
        function(x, y)
    assert x.tolist() == [4, 4, 4]
    assert y.tolist() == [1, 24, 24]


def test_an_argument_that_is_a_view_is_written_through():
    @torch_jax.jit
    def function(x):
        x.add_(1)

    base = torch.zeros(2, 3, device="jax")
    for _ in range(2):
        function(base[:, 1])
    assert base.tolist() == [[0, 2, 0], [0, 2, 0]]
    function(base.t())
    assert base.tolist() == [[1, 3, 1], [1, 3, 1]]
    function(base)
    assert base.tolist() == [[2, 4, 2], [2, 4, 2]]


def test_two_arguments_that_share_memory():
    def function(x, y):
        x.add_(1)
        return y * 2

    compiled = torch_jax.jit(function)
    base, other = ones(), ones()
    assert compiled(base, other).tolist() == [2, 2, 2]
    assert compiled(base, base).tolist() == [6, 6, 6]
    assert compiled(base[:2], base[1:]).tolist() == [8, 6]
    assert compiled(other, base).tolist() == [8, 8, 6]


def test_an_argument_that_is_also_captured():
    weight = ones()

    @torch_jax.jit
    def function(x):
        weight.add_(1)
        return x * 2

    assert function(ones()).tolist() == [2, 2, 2]
    assert function(weight).tolist() == [6, 6, 6]
    assert function(ones()).tolist() == [2, 2, 2]
    assert function(weight[:2]).tolist() == [10, 10]
    assert weight.tolist() == [5, 5, 5]


def test_results_that_are_views_stay_views():
    weight = nn.Parameter(ones(2, 3))

    @torch_jax.jit
    def function(x):
        return x, x[1:], weight.detach().t(), x * 2

    for _ in range(3):
        x = ones()
        same, view, transposed, fresh = function(x)
        assert same is x
        view.zero_()
        assert x.tolist() == [1, 0, 0]
        assert transposed.shape == (3, 2)
        transposed[0].fill_(7)
        assert weight.detach()[:, 0].tolist() == [7, 7]
        fresh.zero_()
        assert x[0].item() == 1
        with torch.no_grad():
            weight.fill_(1)


def test_results_share_memory_with_one_another():
    @torch_jax.jit
    def function(x):
        y = x * 2
        return y, y[1:], y.view(3, 1), [y]

    for _ in range(3):
        y, part, column, (again,) = function(ones())
        part.fill_(5)
        assert y.tolist() == [2, 5, 5]
        assert column.flatten().tolist() == [2, 5, 5]
        assert again is y


def test_the_parameter_itself_as_the_result():
    weight = nn.Parameter(ones())
    function = torch_jax.jit(lambda x: (weight, x + weight))
    for _ in range(3):
        assert function(ones())[0] is weight


@pytest.mark.traced_at_once(fallback="record")
def test_conjugated_and_expanded_results():
    @torch_jax.jit
    def function(x):
        return x.conj(), (x * 1).expand(2, 3), x.imag

    z = torch.tensor([1 + 2j, 3j, 1], device="jax")
    for _ in range(2):
        conjugate, expanded, imaginary = function(z)
        assert torch.equal(conjugate.cpu(), z.cpu().conj())
        assert expanded.stride() == (0, 1)
        assert imaginary.tolist() == [2, 3, 0]
    imaginary.fill_(9)
    assert z.imag.tolist() == [9, 9, 9]


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
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_cache_of_keys_is_written_in_place(write, captured):
    cache = torch.zeros(2, 6, 4, device="jax")
    position = torch.tensor([2], device="jax")

    @torch_jax.jit
    def decode(x, cache, position):
        write(cache, position, x)
        return F.softmax(cache.sum((0, 2)), 0)

    @torch_jax.jit
    def with_captured(x):
        write(cache, position, x)
        return F.softmax(cache.sum((0, 2)), 0)

    run = with_captured if captured else lambda x: decode(x, cache, position)
    memory = cache.untyped_storage()
    for value in (1.0, 2.0, 3.0):
        before = address(cache)
        run(ones(2, 1, 4) * value)
        assert address(cache) == before  # no copy was made
        assert cache.untyped_storage() is memory
        assert cache[:, 2].tolist() == [[value] * 4] * 2
        assert cache.sum().item() == 8 * value


@pytest.mark.slow
def test_a_loop_that_decodes():
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

    compiled = torch_jax.jit(decode)
    (ours, cache), (theirs, expected) = generate(compiled), generate(decode)
    assert ours == theirs
    torch.testing.assert_close(cache, expected)
    assert compiled.explain().traces <= 2, compiled.explain()  # a view at first, then results
