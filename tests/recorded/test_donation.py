"""What a recorded step is compiled to: which memory results take, and which numbers it is given."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torch_jax
from torch_jax.compiler import donation
from torch_jax.recorded import lazy
from torch_jax.recorded import program as recorded_program
from torch_jax.recorded.recorder import Listener


@given(st.lists(st.sampled_from("ab"), max_size=8), st.data())
def test_order_pairs_each_donated_array_with_its_heir(forms, data):
    results = list(range(len(forms)))
    heirs = data.draw(st.permutations(results))
    donated = [
        (form, data.draw(st.sampled_from([heir, None])))
        for heir in heirs[: data.draw(st.integers(0, len(heirs)))]
        for form in (forms[heir],)
    ]
    order = donation.order(results, forms.__getitem__, donated)
    assert sorted(order) == results
    left = list(order)
    for form, heir in donated:  # as JAX does it: the first result of the form
        first = next(one for one in left if forms[one] == form)
        left.remove(first)
        assert heir in (first, None)


def _step(optimizer, layers):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))).to("jax")
    made = optimizer(model.parameters())
    x = torch.randn(2, 4).to("jax")

    def step():
        made.zero_grad()
        model(x).square().mean().backward()
        made.step()

    return step


@pytest.fixture
def programs(monkeypatch):
    """The programs that are compiled for recordings, lowered."""
    found = []
    original = recorded_program.Program._compile

    def compile_(self, forms):
        forms = list(forms)
        found.append((self, self._call.lower(*forms).as_text()))
        return original(self, forms)

    monkeypatch.setattr(recorded_program.Program, "_compile", compile_)
    return found


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "one by one": lambda p: torch.optim.Adam(p, foreach=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_are_updated_in_their_own_memory(name, programs):
    step = _step(OPTIMIZERS[name], layers=3)
    for _ in range(2):
        with torch_jax.lazy():
            step()
    program, text = programs[-1]
    arguments = text[text.index("@main(") : text.index(") -> (")]
    pairs = re.findall(r"%arg(\d+): [^%]*?tf.aliasing_output = (\d+)", arguments)
    assert len(pairs) == len(program.donated) > 0
    # the results that operators write in place of arrays are the first, in the order of these
    assert [int(output) for _, output in pairs] == list(range(len(pairs)))


@pytest.mark.slow
def test_a_number_of_all_parameters_is_given_once():
    counts = {}
    for layers in (2, 6):
        numbers = []

        class Listening(Listener):
            def before(self, state, given, arrays, numbers=numbers):
                numbers.append(len(given))

        step = _step(torch.optim.AdamW, layers)
        for _ in range(2):
            with lazy.observed(Listening()):
                step()
        counts[layers] = numbers[-1]
    assert counts[2] == counts[6]


@pytest.mark.slow
def test_lists_of_numbers_keep_what_each_position_has():
    lists = ([2.0] * 3, [2.0, 2.0, 3.0], [0.0, -0.0, 0.0], [2.0], [True, 1, 1.0], [1, 1, 1])
    for scalars in (*lists, *lists[::-1]):
        ours = [torch.arange(1.0, 4.0, device="jax") for _ in scalars]
        theirs = [torch.arange(1.0, 4.0) for _ in scalars]
        for tensors in (ours, theirs):
            torch._foreach_mul_(tensors, scalars)
            torch._foreach_addcdiv_(tensors, tensors, [t + 1 for t in tensors], scalars)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.cpu(), b) and torch.equal(a.cpu().signbit(), b.signbit())


@pytest.mark.slow
def test_equal_updates_are_traced_and_lowered_once(programs):
    lengths = []
    for layers in (4, 8):
        step = _step(torch.optim.AdamW, layers)
        with torch_jax.lazy():
            step()
        text = programs[-1][1]
        arithmetic = re.findall(r"stablehlo\.(?:sqrt|divide|select|compare)\b", text)
        lengths.append(len(arithmetic))
    assert lengths[0] == lengths[1]
