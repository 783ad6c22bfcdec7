"""Programs for the CPU: what XLA would compute again at each place that reads it is in memory."""

from __future__ import annotations

import jax
import pytest
import torch

import torch_jax
from torch_jax import target

pytestmark = pytest.mark.skipif(not target.on_cpu(), reason="other compilers count by themselves")


def diffused(x, rounds=16):
    for _ in range(rounds):
        x = x + 0.1 * (x.roll(1, 0) + x.roll(-1, 0) - 2 * x)
    return x


def mapped(x, rounds=16):
    for _ in range(rounds):
        x = 3.7 * x * (1 - x)
    return x


@pytest.mark.parametrize("compiled", [torch_jax.jit, lambda f: torch.compile(f, backend="jax")])
def test_a_loop_of_shifts_is_no_single_fusion(compiled):
    x = torch.rand(8, 8)
    run = compiled(diffused)
    torch.testing.assert_close(run(x.to("jax")).cpu(), diffused(x))


def test_results_are_stored_where_other_places_read_them():
    x = torch.rand(8, 8, device="jax")
    programs = [torch_jax.lower(run, x).as_text() for run in (diffused, mapped)]
    assert [text.count("optimization_barrier") > 0 for text in programs] == [True, False]


WRITES = {
    "a slice": lambda cache, x, at: cache.narrow(1, 3, 1).copy_(x[:, None]),
    "an index": lambda cache, x, at: cache.index_copy_(1, at, x[:, None]),
    "a sum": lambda cache, x, at: cache.index_add_(1, at, x[:, None]),
    "two": lambda cache, x, at: [cache.select(1, n).copy_(x) for n in (2, 3)],
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_cache_that_is_written_and_read_is_not_copied(write):
    cache = torch.zeros(2, 64, 4, device="jax")
    x, at = torch.ones(2, 4, device="jax"), torch.tensor([3], device="jax")

    def read():
        write(cache, x, at)
        return cache[:, :8].sum(1)

    assert torch_jax.lower(read).as_text().count("optimization_barrier") == 1
    assert "optimization_barrier" not in torch_jax.lower(write, cache, x, at).as_text()


@pytest.mark.xla_default
@pytest.mark.parametrize("moved", [torch.clone, lambda rows: rows.flip(0)], ids=["clone", "flip"])
def test_what_is_put_into_its_own_array_is_read_before(moved):
    def run(a):
        a.view(-1)[::5].zero_()
        a[1:] = moved(a[:-1])

    a = torch.arange(12.0).view(4, 3)
    b = a.to("jax")
    run(a)
    torch_jax.jit(run, pure=True)(b)
    assert b.tolist() == a.tolist()


def test_a_callback_without_results_runs_among_shifts(capfd):
    def shown(array):
        jax.debug.print("least {}", array.min())
        return array

    x = torch.rand(8, 8)
    run = torch_jax.jit(lambda x: diffused(torch_jax.call_jax(shown, diffused(x))), pure=True)
    torch.testing.assert_close(run(x.to("jax")).cpu(), diffused(x, 32))
    jax.effects_barrier()
    assert "least" in capfd.readouterr().out


def _of_ones(u):
    """Return, for each row, how many elements equal or reach those that were chosen of them."""
    chosen = u.amax(1, keepdim=True), u.gather(1, u.argmax(1, keepdim=True)), u[:, :1]
    reached = [(u >= one).sum(1) for one in (*chosen, u.topk(3, 1).values[:, 2:])]
    return torch.stack([*reached, (u.abs() == u.abs().amax(1, keepdim=True)).sum(1)])


def _ranks(u):
    return (u[:, :, None] >= u[:, None, :]).sum(2)


def _slopes(u):
    largest = torch.linalg.vector_norm(u, float("inf"), dim=1)
    (slopes,) = torch.autograd.grad((largest * torch.arange(len(u), device=u.device)).sum(), u)
    return slopes != 0


@pytest.mark.xla_both
@pytest.mark.parametrize("function", [_of_ones, _ranks, _slopes])
@pytest.mark.parametrize("compiled", [torch_jax.jit, lambda f: torch.compile(f, backend="jax")])
def test_elements_equal_themselves(compiled, function):
    """XLA rounds a product and a sum once in one loop, and twice in another."""
    weights = torch.rand(40, 24, requires_grad=True), torch.rand(1, 24), torch.rand(40, 1)

    def run(a, b, c):
        scaled = (a - c) * b * 1.7 + a * c
        return function(scaled), function(torch.nn.functional.layer_norm(a, (24,), b[0], b[0]))

    given = [one.detach().to("jax").requires_grad_(one.requires_grad) for one in weights]
    actual = [compiled(run)(*given) for _ in range(4)][-1]
    for one, other in zip(actual, run(*weights), strict=True):
        assert one.cpu().equal(other)


@pytest.mark.xla_both
def test_a_single_number_equals_itself():
    """The gradient of a smallest element counts those that equal it."""

    def run(x):
        y = x.detach().requires_grad_()
        return torch.autograd.grad(torch.lgamma(y).cosh().square().min(), y)

    x = torch.tensor(3.046)
    (slope,) = torch_jax.jit(run, pure=True)(x.to("jax"))
    torch.testing.assert_close(slope.cpu(), *run(x))
