"""Recorded operators give what the CPU gives, wherever arguments are of another kind than most."""

from __future__ import annotations

import jax
import pytest
import torch

import torch_jax
from tests.support.compare import assert_same, check, check_raises, to_jax
from torch_jax.memory import storage
from torch_jax.recorded.metrics import COUNTS

REAL, COMPLEX = torch.randn(3, 4), torch.randn(3, 4, dtype=torch.complex64)
INTS = torch.arange(12).view(3, 4)


def _foreach(x):
    many = [x * n for n in range(1, 4)]
    torch._foreach_mul_(many, [2.0, 3.0, 4.0])
    torch._foreach_addcdiv_(many, [x - 1] * 3, [x.exp()] * 3, value=0.5)
    return [*many, *torch._foreach_norm(many)]


def _write_views(x):
    y = x + 1
    y[1:, ::2] = 7
    y.t()[0].mul_(y[2, 1])
    y.view(-1)[::5] += x.flatten()[:3]
    y.diagonal().copy_(torch.arange(3))
    return y, y.as_strided((2, 2), (1, 4), 1).clone()


def _outs(x):
    out, row = torch.empty_like(x), x.new_empty(0)
    torch.add(x, 1, out=out)
    torch.sum(out, 0, out=row)
    torch.mul(x[:, :2], 2, out=out[:, 2:])
    return out, row, (x + 1).resize_(2, 2), (x.sum(0) + 1).resize_(5)[:4]


def _control_flow(x):
    chosen = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    return chosen + 1


def _autocast(x):
    weight = (x * 2).detach().requires_grad_()
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = torch.nn.functional.linear(x, weight)
        again = torch.nn.functional.linear(x + 1, weight)
    return y, again.float() + 1, torch.autograd.grad(y.float().sum() + again.float().sum(), weight)


def _conjugates(x):
    y = x * 1
    y.conj().mul_(2j), y.conj()[1:].imag.zero_()
    return y, x.conj().clone(), x.t().conj()[1:].contiguous(), x.conj() @ x.t()


def _negatives(x):
    y = (x * 2).conj().imag
    return y.clone(), y.double(), -y


def _parts(x):
    y = x * 1
    y.real.add_(1), torch.view_as_real(y).mul_(2)
    return y


def _tensors_of_the_cpu(x):
    return x + torch.tensor(2.5), torch.tensor(3) * x, x.clamp(max=torch.tensor(0.5))


def _no_elements(x):
    y = x[:0] + 1
    return y, y.sum(), torch.cat([y, x]), y.t().clone(), y.new_zeros(0, 3)


def _no_dimensions(x):
    y = x.sum()
    return y.expand(2, 2) + y, y.add_(1)


def _factories(x):
    on = {"device": x.device}
    return torch.zeros(2, **on) + 1, torch.eye(2, **on), x.new_full((2,), 3), torch.arange(3, **on)


def _layouts(x):
    y = (x + 1).view(1, 3, 2, 2).to(memory_format=torch.channels_last)
    return y, y * 2


def _storages(x):
    y, other = x * 1, (x * 2).untyped_storage()
    y.set_(other, 1, (2, 3), (3, 1))
    return y.resize_(2, 2), y + 1


CASES = {
    "conjugates": (_conjugates, COMPLEX),
    "negatives": (_negatives, COMPLEX),
    "parts": (_parts, COMPLEX),
    "complex numbers": (lambda x: (x + 1j, x * (2 - 3j), torch.full_like(x + 0j, 1j)), REAL),
    "bytes": (lambda x: ((x + 0).view(torch.int32) & 255, (x * 2).view(torch.uint8)[:, ::4]), REAL),
    "large integers": (lambda x: (x ^ (2**63 - 1), (x - 1).fill_(-(2**63)), x % 2**62), INTS),
    "uint64": (lambda x: (torch.full_like(x, 2**64 - 1), x.clone()), INTS.to(torch.uint64)),
    "bool": (lambda x: ((x > 3) + True, (x > 3).sum() * True), INTS),
    "tensors of the CPU": (_tensors_of_the_cpu, REAL),
    "no elements": (_no_elements, REAL),
    "no dimensions": (_no_dimensions, REAL),
    "factories": (_factories, REAL),
    "doubles": (lambda x: ((x + 1).double() / 3, (x * 2).bfloat16().float()), REAL),
    "lists": (_foreach, REAL),
    "views written": (_write_views, REAL),
    "outputs": (_outs, REAL),
    "autocast": (_autocast, REAL),
    "layouts": (_layouts, REAL),
    "storages": (_storages, REAL),
}


@pytest.mark.parametrize("name", CASES)
def test_one_graph(name):
    function, x = CASES[name]
    before = COUNTS.graphs
    check(function, x, executor="lazy")
    assert COUNTS.graphs - before == 1


ASKING = {
    "sizes": lambda x: (x[x > 0], x.nonzero(), x.gt(0).long().unique()),
    "control flow": _control_flow,
    "numbers": lambda x: x * x.sum().item() + (1 if x.max() > 0 else 2),
    "lists": lambda x: (x * 2).tolist(),
    "equality": lambda x: (torch.equal(x, x + 0), x.allclose(x * 1)),
    "sparse": lambda x: (x * x.gt(0)).to_sparse().to_dense() + 1,
}


@pytest.mark.parametrize("name", ASKING)
def test_what_asks_for_values(name):
    check(ASKING[name], REAL, executor="lazy")


RAISING = {
    "an index": (lambda x: x[torch.tensor([5], device=x.device)], REAL),
    "an embedding": (lambda x: torch.nn.functional.embedding(x, x), INTS),
    "shapes": (lambda x: x @ x, REAL),
    "no elements": (lambda x: (x[:0] + 1).max(), REAL),
    "a division": (lambda x: x // torch.zeros_like(x), INTS),
    "a cast": (lambda x: (x + 1).add_(0.5), INTS),
    "a number": (lambda x: x.to(torch.uint8).add_(10**30), INTS),
}


@pytest.mark.parametrize("name", RAISING)
def test_errors_are_raised_at_the_call(name):
    function, x = RAISING[name]
    with torch_jax.lazy():
        check_raises(function, x)


def test_overrides_are_recorded():
    x = to_jax(REAL)
    before = COUNTS.graphs
    override = torch_jax.default_env().override("aten::relu", lambda self: self * 3)
    with torch_jax.lazy(), override:
        y = (x + 1).relu() + 1
    assert COUNTS.graphs - before == 1
    assert_same(y, (REAL + 1) * 3 + 1)


def test_a_trace_of_the_users_sees_what_is_recorded():
    with torch_jax.lazy():
        x = to_jax(REAL) * 2

        def function(array):
            return storage.memory_of(storage.wrap(array) + x)

        traced = jax.jit(function)(storage.memory_of(to_jax(REAL)))
        y = storage.wrap(traced) - x
    assert_same(y, REAL)


@pytest.mark.slow
def test_draws_are_those_of_eager_mode():
    def draws():
        torch.manual_seed(3)
        x = torch.ones(64, device="jax")
        return torch.rand_like(x), torch.nn.functional.dropout(x), x.bernoulli(0.3), x.normal_()

    eager = draws()
    with torch_jax.lazy():
        recorded = draws()
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(eager, recorded, strict=True))


def test_a_tensor_of_one_truth_value_is_no_number():
    x = torch.ones(3, device="jax")
    with torch_jax.lazy():
        before = COUNTS.graphs
        y = (x.sum() > 2).logical_not().logical_not()
        assert COUNTS.graphs == before
    assert y.item() is True
