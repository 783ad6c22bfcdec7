"""Compiled entries: calls that compile, calls that do not, and the number of entries."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.support.steps import batch, mlp, step_of
from torch_jax import config
from torch_jax.dispatch.ladder import KERNELS_BY_OP
from torch_jax.eager import bound, kernel


def _entries() -> int:
    return sum(len(kernel.cache) for kernel in KERNELS_BY_OP.values())


@pytest.mark.slow
def test_a_training_loop_compiles_in_its_first_steps_only():
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = step_of(model, optimizer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    x = batch()
    for _ in range(2):  # the second step is the first with optimizer state
        step(x)
        schedule.step()
    before = _entries()
    losses = []
    for _ in range(8):
        losses.append(step(x).item())
        schedule.step()
    assert _entries() == before
    assert losses == sorted(losses, reverse=True)


@pytest.mark.usefixtures("eager_by_xla")
@pytest.mark.slow
def test_a_changed_setting_is_never_stale():
    x, index = torch.arange(3.0, device="jax"), torch.tensor([5], device="jax")
    before = config.get("check_indices")
    try:
        for mode in ("always", "never", "always"):
            config.set("check_indices", mode)
            if mode == "never":
                assert x[index].isnan().item()  # said in the docs: never clamped
            else:
                with pytest.raises(IndexError, match="out of bounds"):
                    x[index]
    finally:
        config.set("check_indices", before)


@pytest.mark.usefixtures("eager_by_xla")
@pytest.mark.slow
def test_one_bound_over_all_entries(monkeypatch):
    """What is in constant use stays; of the rest, what was not called for the longest time goes."""
    x = torch.ones(2, device="jax")
    before = config.get("cache_size")
    config.set("cache_size", 12)
    compiled, calls = [], bound.calls()
    monkeypatch.setattr(kernel, "compile_listeners", [compiled.append])
    try:
        for n in range(1, 30):
            y = torch.full((n,), 2.0, device="jax")
            assert (torch.neg(y) * 3).sum().item() == -6 * n
            assert torch.tanh(x).shape == (2,)
            assert _entries() <= 12
        assert bound.calls() - calls == 29 * 5  # those of entries that are gone, too
        assert compiled.count(torch.ops.aten.tanh.default) == 1
        assert compiled.count(torch.ops.aten.neg.default) == 29
        assert torch.neg(torch.ones(1, device="jax")).item() == -1
    finally:
        config.set("cache_size", before)


@pytest.mark.usefixtures("eager_by_xla")
def test_entries_go_before_memory_maps_run_out(monkeypatch):
    """XLA's programs for the CPU take maps, and a process without any left would end."""
    limit = bound._share_of_maps() * 1.0001  # one more program is too much
    monkeypatch.setattr(bound, "SHARE_OF_MEMORY_MAPS", limit)
    monkeypatch.setattr(bound, "ENTRIES_BETWEEN_LOOKS_AT_MAPS", 4)
    counts = []
    for n in range(1, 40):
        assert torch.neg(torch.full((n,), 2.0, device="jax")).sum().item() == -2 * n
        counts.append(_entries())
    assert any(after < before for before, after in itertools.pairwise(counts))
    assert torch.neg(torch.ones(1, device="jax")).item() == -1
