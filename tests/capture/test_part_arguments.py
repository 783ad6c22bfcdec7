"""What a loop around a compiled function does: parts of tensors, lists made anew, new loggers."""

from __future__ import annotations

import cProfile
import functools
import logging
import threading

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.values import randn


def test_parts_of_a_tensor_share_one_program():
    double = torch_jax.jit(lambda x: x * 2)
    steps = torch.arange(20, device="jax")
    assert [double(steps[i].expand(1)).item() for i in range(20)] == list(range(0, 40, 2))
    rows = torch.arange(12.0, device="jax").view(6, 2)
    for i in range(3):
        expected = rows[2 * i : 2 * i + 2].cpu() * 2
        assert torch.equal(double(rows[2 * i : 2 * i + 2]).cpu(), expected)
    assert double.explain().traces == 2


def test_a_part_that_is_written_changes_the_whole():
    rows = torch.zeros(3, 2, device="jax")
    add = torch_jax.jit(lambda x: x.add_(1))
    assert add(rows[1]).data_ptr() == rows[1].data_ptr()
    add(rows[1])
    add(rows[2])
    assert rows.tolist() == [[0, 0], [2, 2], [1, 1]]


def test_a_part_that_an_eager_call_writes_changes_the_whole():
    rows = torch.zeros(3, 2, device="jax")

    @functools.partial(torch_jax.jit, fallback="eager")
    def add(x):
        if x.sum().item() >= 0:
            x.add_(1)
        return x

    for _ in range(2):
        assert add(rows[1]).data_ptr() == rows[1].data_ptr()
    add(rows[2])
    assert rows.tolist() == [[0, 0], [2, 2], [1, 1]]


@pytest.mark.parametrize("give", [lambda x: x, lambda x: x[:1], lambda x: (x + 1, x.view(2, 1))])
def test_a_part_that_is_returned_is_that_part(give):
    rows = torch.ones(3, 2, device="jax")
    result = torch_jax.jit(give)(rows[1])
    returned = result[1] if isinstance(result, tuple) else result
    returned.zero_()
    assert rows[1][0].item() == 0
    assert rows[0].tolist() == [1, 1]


def test_a_part_of_what_is_written_is_seen_written():
    state = torch.zeros(3, 2, device="jax")
    other = torch.zeros(3, 2, device="jax")

    @torch_jax.jit
    def step(x):
        state.add_(1)
        return x * 1

    assert step(other[0]).tolist() == [0, 0]  # now there is a program that takes a part by value
    assert step(state[0]).tolist() == [2, 2]
    assert step(other[1]).tolist() == [0, 0]
    assert step(state[1]).tolist() == [4, 4]


def test_the_same_part_twice():
    rows = torch.arange(6.0, device="jax").view(3, 2)
    add = torch_jax.jit(lambda x, y: x + y)
    assert add(rows[0], rows[1]).tolist() == [2, 4]
    assert add(rows[1], rows[1]).tolist() == [4, 6]
    assert add(rows[2], rows[1]).tolist() == [6, 8]


def test_gradients_of_what_a_part_meets():
    weight = torch.ones(2, device="jax", requires_grad=True)
    rows = torch.arange(4.0, device="jax").view(2, 2)
    product = torch_jax.jit(lambda x: (x * weight).sum())
    product(rows[1]).backward()
    assert weight.grad.tolist() == [2, 3]


# --- containers -----------------------------------------------------------------------------------


class Cached(nn.Module):
    """Makes its lists anew at each call, as the causal convolutions of video models do."""

    def forward(self, x):
        self.index = [0]
        self.cache = [None] * 3
        for _ in range(3):
            self.cache[self.index[0]] = x + self.index[0]
            self.step()
        total = sum(self.cache)
        self.cache = [None] * 3
        return total

    def step(self):
        self.index[0] += 1


def test_lists_made_anew_are_no_change():
    plain, compiled = Cached(), torch_jax.jit(Cached())
    for i in range(5):
        x = torch.full((2,), float(i), device="jax")
        assert torch.equal(compiled(x).cpu(), plain(x).cpu())
        assert (compiled.index, compiled.cache) == (plain.index, plain.cache)
    assert torch_jax.explain(compiled).traces <= 2


def test_another_list_counts_by_what_it_holds():
    holder = nn.Module()
    holder.numbers, holder.nested = [1.0], {"a": [2.0]}
    function = torch_jax.jit(lambda x: x * holder.numbers[0] + holder.nested["a"][0])
    x = torch.ones(1, device="jax")

    def value() -> float:
        return function(x).item()

    assert value() == 3.0
    holder.numbers = [1.0]
    holder.nested = {"a": [2.0]}
    assert (value(), function.explain().traces) == (3.0, 1)
    holder.numbers[0] = 5.0
    assert value() == 7.0
    holder.nested["a"][0] = 3.0
    assert value() == 8.0
    holder.nested["a"] = [4.0]
    assert value() == 9.0
    holder.numbers = [6.0, 7.0]
    assert value() == 10.0


def test_lists_that_become_one_or_two():
    holder = nn.Module()
    holder.one, holder.two = [1.0], [1.0]

    @torch_jax.jit
    def function(x):
        holder.one[0] = 2.0
        return x * holder.two[0]

    x = torch.ones(1, device="jax")
    assert function(x).item() == 1.0
    holder.one = holder.two = [1.0]
    assert function(x).item() == 2.0
    holder.one, holder.two = [1.0], [1.0]
    assert function(x).item() == 1.0
    holder.two = [1.0]
    holder.one = holder.two
    assert function(x).item() == 2.0


@pytest.mark.traced_at_once(fallback="record")
def test_sets_that_are_changed_between_calls():
    holder = nn.Module()
    holder.seen = set()

    @torch_jax.jit
    def function(x):
        holder.seen = {len(holder.seen), 7}
        return x * len(holder.seen)

    x = torch.ones(1, device="jax")
    for _ in range(3):
        function(x)
        assert holder.seen == {2, 7} or holder.seen == {0, 7}
        holder.seen.add(3)
        holder.seen.discard(3)
    holder.seen = {1, 2, 3}
    function(x)
    assert holder.seen == {3, 7}


def test_new_loggers_are_no_change():
    logger = logging.getLogger("torch_jax.tests.parts")
    holder = nn.Module()
    holder.logger = logger

    @torch_jax.jit
    def function(x):
        return x * (2 if getattr(holder, "logger", None) is not None else 3)

    x = torch.ones(1, device="jax")
    function(x)
    logging.getLogger("torch_jax.tests.parts.new").isEnabledFor(10)
    logger.isEnabledFor(20)
    assert (function(x).item(), function.explain().traces) == (2.0, 1)


# --- threads --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_other_threads_use_a_model_while_it_is_traced():
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
        torch_jax.jit(lambda x, scale=scale: model(x).sum() * scale)(x)
    stop.set()
    for thread in threads:
        thread.join()
    assert rounds
    assert not failures, failures[0]


# --- objects that are returned --------------------------------------------------------------------


class Cache:
    """What a model returns beside its result."""

    def __init__(self):
        self.layers = []
        self.is_filled = False
        self.owner = self

    def fill(self, keys):
        self.layers.append(keys)
        self.is_filled = True


def test_objects_that_are_returned_are_new_at_each_call():
    def function(x):
        cache = Cache()
        cache.fill(x * 2)
        cache.fill(x * 3)
        return {"out": x + 1, "cache": cache, "again": [cache]}

    compiled = torch_jax.jit(function)
    results = [compiled(torch.full((2,), float(i), device="jax")) for i in range(4)]
    for i, result in enumerate(results):
        cache = result["cache"]
        assert type(cache) is Cache and cache.is_filled
        assert result["again"] == [cache]
        assert cache.owner is cache
        assert [layer.tolist() for layer in cache.layers] == [[2.0 * i] * 2, [3.0 * i] * 2]
    assert len({id(result["cache"]) for result in results}) == 4
    assert compiled.explain().traces == 1


@pytest.mark.traced_at_once(fallback="record")
def test_objects_that_are_left_somewhere_stay_what_they_are():
    holder = nn.Module()
    holder.cache = None

    @torch_jax.jit
    def function(x):
        if holder.cache is None:
            holder.cache = Cache()
        holder.cache.layers = [x * 2]
        return holder.cache

    for i in range(4):
        cache = function(torch.full((2,), float(i), device="jax"))
        assert cache is holder.cache
        assert cache.layers[0].tolist() == [2.0 * i] * 2
    assert function.explain().traces == 1  # the call that makes the object is recorded


@pytest.mark.slow
@pytest.mark.traced_at_once(fallback="record")
def test_a_language_model_returns_its_cache():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=32, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 32, (2, 6))
    with torch.no_grad():
        expected = [model(ids + i) for i in range(4)]
        torch_jax.jit(model.to("jax"))
        actual = [model((ids + i).to("jax")) for i in range(4)]
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.logits.cpu(), theirs.logits, rtol=1e-4, atol=1e-5)
        for mine, other in zip(ours.cache.layers, theirs.cache.layers, strict=True):
            torch.testing.assert_close(mine.keys.cpu(), other.keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine.values.cpu(), other.values, rtol=1e-4, atol=1e-5)
    assert torch_jax.explain(model).traces == 1  # each call makes its cache anew
    assert len({id(one.cache) for one in actual}) == 4


def test_a_profiler_goes_on():
    profiler = cProfile.Profile()
    profiler.enable()
    assert torch_jax.jit(lambda x: x * 2)(torch.ones(2, device="jax")).tolist() == [2, 2]
    profiler.disable()
    assert profiler.getstats()
