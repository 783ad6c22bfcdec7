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


def test_a_callback_without_results_runs_among_shifts(capfd):
    def shown(array):
        jax.debug.print("least {}", array.min())
        return array

    x = torch.rand(8, 8)
    run = torch_jax.jit(lambda x: diffused(torch_jax.call_jax(shown, diffused(x))), pure=True)
    torch.testing.assert_close(run(x.to("jax")).cpu(), diffused(x, 32))
    jax.effects_barrier()
    assert "least" in capfd.readouterr().out
