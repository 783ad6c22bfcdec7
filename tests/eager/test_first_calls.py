"""First calls that NumPy computes: the same bits as the compiled program, and nothing compiled."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch_jax.compiler import by_numpy, options, tiers
from torch_jax.dispatch.ladder import KERNELS_BY_OP, forget_compiled

_INF, _NAN = float("inf"), float("nan")
_SPECIAL = [0.0, -0.0, 1.0, -1.0, _INF, -_INF, _NAN, 1e-40, 1e-38, 3e38, 0.5, 1.5, 2.5, 1e19, -1e19]


@pytest.fixture
def by_hand(monkeypatch):
    """First calls by NumPy, whatever the tests set in XLA_FLAGS."""
    monkeypatch.setattr(options, "has_fast", lambda: True)
    monkeypatch.setattr(options, "fast", lambda: {"xla_backend_optimization_level": 0})
    monkeypatch.setattr(options, "operator", lambda: {"xla_backend_optimization_level": 1})
    torch.jax.init()
    forget_compiled()
    yield
    forget_compiled()


@pytest.fixture
def compared(by_hand, monkeypatch):
    """Each first call is also compiled, and both results compared; counts of calls by NumPy."""
    original, count = by_numpy.by_numpy, [0]

    def both(traced):
        run = original(traced)
        if run is None:
            return None

        def call(*args):
            found, wanted = run(*args), traced.lower().compile(options.fast())(*args)
            for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                _assert_same_bits(x, y, traced)
            count[0] += 1
            return found

        return call

    monkeypatch.setattr(tiers.by_numpy, "by_numpy", both)
    return count


def _assert_same_bits(x, y, traced):
    assert (x.dtype, x.shape, x.weak_type) == (y.dtype, y.shape, y.weak_type), traced.jaxpr
    x, y = np.array(x), np.array(y)
    if x.dtype.kind == "f":
        nan = np.isnan(x)
        assert (nan == np.isnan(y)).all(), traced.jaxpr
        x[nan] = y[nan] = 0
    assert x.tobytes() == y.tobytes(), (traced.jaxpr, x, y)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers_of_all_kinds(compared, dtype):
    a, b = torch.meshgrid(*2 * [torch.tensor(_SPECIAL, dtype=dtype)], indexing="ij")
    x, y = (t.contiguous().to("jax") for t in (a, b))
    for function in (torch.add, torch.sub, torch.mul, torch.div, torch.lt, torch.ge, torch.eq):
        function(x, y)
    for function in (torch.abs, torch.floor, torch.round, torch.trunc, torch.sqrt, torch.square):
        function(x)
    for dtype in (torch.int32, torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float32):
        x.to(dtype)
    torch.relu(x), torch.fmod(x, y), torch.where(x > y, x, y), F.leaky_relu(x), F.hardtanh(x + 1)
    assert compared[0] > 20


@pytest.mark.slow
def test_reductions_and_elements_that_move(compared):
    x = torch.randn(5, 6, 7).to("jax")
    at, to = torch.tensor([0, 4, 2, 2]).to("jax"), torch.randint(0, 5, (3, 6, 7)).to("jax")
    x.sum(1), x.mean((0, 2)), x.amax(0), x.max(2), x.argmin(1), x.sort(1), to.sum(0), to.cumsum(1)
    F.adaptive_avg_pool2d(x, (4, 3)), F.avg_pool2d(x, 2), F.max_pool2d(x, 2)
    x[at], x[:, at, :3], x[at[:, None], :, at[None]], x[x > 0], x[1:4, ::2, 2:].contiguous()
    x.gather(0, to), x.index_select(1, at), F.embedding(at, x[:, :, 0].contiguous()), F.one_hot(at)
    x.flip(0, 2), x.roll(2, 1), x.permute(2, 0, 1).contiguous(), x.repeat(2, 1, 1), x.tril()
    (
        F.pad(x, (1, 2, -1, 1), value=3.0),
        F.pad(x, (-2, -2)),
        torch.cat([x, x], 1),
        torch.stack([x, x]),
    )
    x[1:3, ::2, 2:] = 7
    x[:, 1] += x[:, 2]
    x.masked_fill(x > 0, -1.0), torch.arange(7, device="jax"), torch.eye(4, device="jax")
    x.half().clone(), x.bfloat16()[:, 1:].contiguous(), x.unfold(1, 3, 2).contiguous()
    assert compared[0] > 35


def test_nothing_is_compiled_for_a_few_calls_and_one_program_for_many(by_hand, monkeypatch):
    monkeypatch.setattr(tiers, "_WORTH_COMPILING", 8 * tiers._SMALL)
    x = torch.randn(3)
    y = x.to("jax")
    for n in range(12):
        assert torch.equal(torch.neg(y).cpu(), -x)
        (entry,) = KERNELS_BY_OP[torch.ops.aten.neg.default].cache.values()
        assert (entry.run.call.__qualname__ == "Tiered._uncompiled.<locals>.call") == (n < 8)


def test_results_share_memory_with_nothing(by_hand):
    """What is written later, or given away, must not show in an earlier result."""
    x = torch.arange(6.0).to("jax")
    same, turned, whole = x.clone(), x.reshape(2, 3).t().contiguous(), torch.zeros(3, device="jax")
    x += 1
    again = torch.zeros(3, device="jax")
    whole += 5
    assert same.tolist() == [0, 1, 2, 3, 4, 5] and turned.flatten().tolist() == [0, 3, 1, 4, 2, 5]
    assert again.tolist() == [0, 0, 0]


def test_a_thread_keeps_its_own_treatment_of_denormal_floats(by_hand):
    tiny = np.float32(1e-40)
    x = torch.tensor([1e-40]).to("jax")
    for flushes in (False, True):
        torch.set_flush_denormal(flushes)
        try:
            assert (x * 1).tolist() == [0.0]
            assert bool(tiny * np.float32(1) == 0) == flushes
        finally:
            torch.set_flush_denormal(False)


def test_operators_that_numpy_computes_otherwise_are_compiled(by_hand):
    x = torch.randn(40).to("jax")
    for function in (torch.exp, torch.sum):
        function(x)
    calls = {
        str(op): entry.run.call.__qualname__
        for op in (torch.ops.aten.exp.default, torch.ops.aten.sum.dim_IntList)
        for entry in KERNELS_BY_OP[op].cache.values()
    }
    assert calls and all("_uncompiled" not in name for name in calls.values()), calls
