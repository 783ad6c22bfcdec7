"""Sizes that grow by one from call to call: few programs serve all of them, and none is wrong."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import torch_jax
from tests.support.compare import assert_same
from tests.support.ledger import programs


def _rows(n: int, width: int = 1) -> torch.Tensor:
    """``[2, n, width]``, and ``[2, n]`` where the width is one: each element another."""
    x = torch.arange(2.0 * n * width).sin().reshape(2, n, width)
    return x[..., 0] if width == 1 else x


def _raised(device: str, call: Callable[[], torch.Tensor]) -> torch.Tensor:
    try:
        return call()
    except (IndexError, RuntimeError):
        return torch.tensor(-1.0, device=device)


def _attends(n: int, d: str) -> torch.Tensor:
    key, value = (_rows(n, 4)[:, None].to(d) * k for k in (1, 2))
    return F.scaled_dot_product_attention(_rows(1, 4)[:, None].to(d), key, value)


def _attends_masked(n: int, d: str) -> torch.Tensor:
    key = _rows(n, 4)[:, None].to(d)
    seen = (torch.arange(n) % 3 != 1).to(d).expand(2, 1, 1, n)
    return F.scaled_dot_product_attention(_rows(1, 4)[:, None].to(d), key, key, seen)


_numbers = torch.arange(50.0)[None]

CASES: dict[str, Callable[[int, str], torch.Tensor]] = {
    "append": lambda n, d: torch.cat([_rows(n).to(d), torch.ones(2, 1).to(d)], 1),
    "append_rows": lambda n, d: torch.cat([_rows(n, 3).to(d), torch.ones(2, 1, 3).to(d)], -2),
    "pointwise": lambda n, d: torch.where(_rows(n).to(d) > 0, _rows(n).to(d) + 1, 2.0),
    "sum": lambda n, d: _rows(n).to(d).sum(1),
    "softmax": lambda n, d: _rows(n).to(d).softmax(1),
    "max": lambda n, d: _rows(n).to(d).max(),
    "argmax": lambda n, d: _rows(n).to(d).argmax(-1),
    "products": lambda n, d: _rows(n).to(d).t() @ _rows(n).to(d),
    "attention": _attends,
    "attention_masked": _attends_masked,
    "last": lambda n, d: torch.isin(_rows(n).to(d)[:, -1], _rows(3).to(d)),
    "cast": lambda n, d: _rows(n).to(d).to(torch.bool).any(0),
    "beams": lambda n, d: _rows(n, 3).to(d).index_select(0, torch.tensor([1, 0, 1]).to(d)),
    "gather": lambda n, d: _numbers.to(d).gather(1, torch.arange(n)[None].to(d)),
    "gather_outside": lambda n, d: _raised(
        d, lambda: _numbers[:, :20].to(d).gather(1, torch.arange(n)[None].to(d))
    ),
    "gather_along_growing": lambda n, d: _raised(
        d, lambda: _rows(n).to(d).gather(1, torch.full((2, 1), 9).to(d))
    ),
    "scatter": lambda n, d: _numbers.to(d).scatter(
        1, torch.arange(n)[None].to(d), -_rows(n)[:1].to(d)
    ),
    "parts_of_one": lambda n, d: torch.cat(
        [_rows(n).to(d), torch.arange(4.0).reshape(2, 2).to(d)[:, n % 2 :][:, :1]], 1
    ),
}
# which cannot be served so: its bounds hang on how long the operand is
_EACH = frozenset(("gather_along_growing",))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_growing_size_is_an_input(name):
    before = programs()
    for n in range(3, 40):
        on_device, on_cpu = CASES[name](n, "jax"), CASES[name](n, "cpu")
        assert_same(on_device, on_cpu)
        assert on_device.stride() == on_cpu.stride()
    assert programs() - before <= (80 if name in _EACH else 20)


@pytest.mark.slow
def test_a_growing_text_in_lazy_mode_and_under_jit():
    """Entries of eager mode serve recordings and traces, too."""

    def grown(device: str) -> torch.Tensor:
        text = torch.zeros(2, 3, device=device)
        for i in range(12):
            text = torch.cat([text, torch.full((2, 1), float(i), device=device)], 1) + 1
        return text

    expected = grown("cpu")
    assert_same(grown("jax"), expected)
    with torch_jax.lazy():
        recorded = grown("jax")
    assert_same(recorded, expected)
    appended = torch_jax.jit(lambda x: torch.cat([x, x[:, :1]], 1) + 1)
    assert_same(appended(grown("jax")), torch.cat([expected, expected[:, :1]], 1) + 1)


@pytest.mark.slow
def test_gradients_through_growing_sizes():
    def slope(device: str) -> torch.Tensor:
        x = torch.ones(2, 1, device=device, requires_grad=True)
        text = x
        for _ in range(12):
            text = torch.cat([text, x.sin()], 1) * 1.5
        text.softmax(1).max().backward()
        return x.grad

    assert_same(slope("jax"), slope("cpu"))


@pytest.mark.slow
def test_no_tensor_outlives_its_call():
    gc.collect()
    gc.disable()
    try:
        for n in range(3, 12):
            x, y = (_rows(n, 3).to("jax") for _ in range(2))
            memories = [weakref.ref(t.untyped_storage()) for t in (x, y)]
            torch.where(x > 0, torch.cat([x, y], 1)[:, :n], y)
            del x, y
            assert [memory() for memory in memories] == [None, None], n
    finally:
        gc.enable()


@pytest.mark.slow
def test_memory_is_as_long_as_the_tensor():
    for n in range(3, 12):
        x = _rows(n, 3).to("jax")
        for result in (x.exp(), torch.cat([x, x], 1), x.sum(2)):
            assert result.untyped_storage().nbytes() == result.nbytes
