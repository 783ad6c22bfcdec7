"""Two tiers of compiling: quickly at first, well after a certain amount of work."""

from __future__ import annotations

import pytest
import torch

from tests.support import processes
from torch_jax import config
from torch_jax.compiler import options, tiers
from torch_jax.dispatch.ladder import KERNELS_BY_OP, forget_compiled


@pytest.fixture
def tiered(monkeypatch):
    """Two tiers that differ, whatever the tests set in XLA_FLAGS, and little work to go."""
    monkeypatch.setattr(options, "has_fast", lambda: True)
    monkeypatch.setattr(options, "fast", lambda: {"xla_backend_optimization_level": 1})
    monkeypatch.setattr(options, "operator", lambda: {"xla_backend_optimization_level": 2})
    monkeypatch.setattr(tiers, "_WORTH", 8 * tiers._LEAST)
    monkeypatch.setattr(tiers, "_WORTH_COMPILING", 0)
    torch.jax.init()
    forget_compiled()
    yield
    forget_compiled()


def _entry(op):
    (entry,) = KERNELS_BY_OP[op].cache.values()
    return entry


def test_the_full_tier_is_taken_at_a_certain_call(tiered):
    x = torch.randn(3)
    y = x.to("jax")
    for n in range(1, 12):
        assert torch.equal(torch.neg(y).cpu(), -x)
        assert _entry(torch.ops.aten.neg.default).run.is_full == (n >= 8)


def _has_one_tier(op) -> bool:
    return not hasattr(_entry(op).run, "_full")


def test_operators_that_write_are_promoted_too(tiered):
    x, y = torch.zeros(4), torch.zeros(4, device="jax")
    for n in range(20):
        x[n % 4] += n
        y[n % 4] += n
    assert torch.equal(y.cpu(), x)
    assert _entry(torch.ops.aten.add_.Tensor).run.is_full


def test_large_work_is_compiled_well_at_once(tiered, monkeypatch):
    monkeypatch.setattr(tiers, "_WORTH", 100)
    torch.neg(torch.ones(100, device="jax"))
    assert _has_one_tier(torch.ops.aten.neg.default)


def test_the_setting_turns_tiers_off(tiered):
    before = config.get("tiers")
    config.set("tiers", False)
    try:
        torch.neg(torch.ones(3, device="jax"))
        assert _has_one_tier(torch.ops.aten.neg.default)
    finally:
        config.set("tiers", before)


def test_a_trace_takes_neither_tier(tiered):
    """XLA's options belong to the outermost program, and JAX refuses others within."""
    import torch_jax

    step = torch_jax.jit(lambda x: torch.neg(x) * 2)
    x = torch.ones(3, device="jax")
    torch.neg(x)
    assert step(x).tolist() == [-2.0, -2.0, -2.0]


def test_an_option_that_xla_does_not_know_is_left_out():
    given = (options.Option("xla_no_such_option", 1, ""), options.FAST["cpu"][0])
    assert "xla_no_such_option" not in options._known(given)


def test_an_option_that_the_user_has_set_is_left_alone(monkeypatch):
    name = options.ALWAYS["cpu"][0].name
    monkeypatch.setenv("XLA_FLAGS", f"--{name}=x")
    assert options._known.__wrapped__(options.ALWAYS["cpu"]) == {}


@pytest.mark.slow
def test_a_process_ends_while_operators_are_compiled():
    program = """
import torch
from torch_jax.compiler import tiers
tiers._WORTH = 4 * tiers._LEAST
for n in range(1, 30):
    x = torch.ones(n, device="jax")
    for _ in range(3):
        x = torch.tanh(x)
print("done")
"""
    assert processes.output("-c", program, new=True, XLA_FLAGS="") == "done"
