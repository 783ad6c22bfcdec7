"""Recorded operators, and other uses of tensors that are yet to be computed."""

from __future__ import annotations

import copy
import io
import pickle

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torch_jax
from tests.support.compare import assert_same, check, check_raises, to_jax
from tests.support.lazily import counted, is_pending
from torch_jax.memory import storage

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
    y[:, 1:3] = y[:, :2].clone()
    y.diagonal().copy_(torch.arange(3))
    return y, y.as_strided((2, 2), (1, 4), 1).clone(), y.diagonal(), y.unfold(0, 2, 1)


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
    return y, torch.complex(y.imag, y.real)


def _no_elements(x):
    y = x[:0] + 1
    return y, y.sum(), torch.cat([y, x]), y.t().clone(), y.new_zeros(0, 3)


def _storages(x):
    y, z, other = x * 1, x * 3, (x * 2).untyped_storage()
    y.set_(other, 1, (2, 3), (3, 1))
    z.data = y * 2
    z.data.add_(1)
    return y.resize_(2, 2), y + 1, z, (y + 0).view(torch.int32).view(torch.float32)


CASES = {
    "conjugates": (_conjugates, COMPLEX),
    "negatives": (_negatives, COMPLEX),
    "parts": (_parts, COMPLEX),
    "complex numbers": (lambda x: (x + 1j, x * (2 - 3j), torch.full_like(x + 0j, 1j)), REAL),
    "bytes": (lambda x: ((x + 0).view(torch.int32) & 255, (x * 2).view(torch.uint8)[:, ::4]), REAL),
    "large integers": (lambda x: (x ^ (2**63 - 1), (x - 1).fill_(-(2**63)), x % 2**62), INTS),
    "uint64": (lambda x: (torch.full_like(x, 2**64 - 1), x.clone()), INTS.to(torch.uint64)),
    "bool": (lambda x: ((x > 3) + True, (x > 3).sum() * True), INTS),
    "CPU": (lambda x: (x + torch.tensor(2.5), torch.tensor(3) * x, x.clamp(max=torch.tensor(0.5))),
            REAL),
    "no elements": (_no_elements, REAL),
    "no dimensions": (lambda x: (x.sum().expand(2, 2) + x.sum(), x.sum().add_(1)), REAL),
    "doubles": (lambda x: ((x + 1).double() / 3, (x * 2).bfloat16().float()), REAL),
    "lists": (_foreach, REAL),
    "views written": (_write_views, REAL),
    "storages": (_storages, REAL),
}  # fmt: skip


@pytest.mark.parametrize("function, x", CASES.values(), ids=CASES)
def test_one_graph(function, x):
    with counted() as did:
        check(function, x, executor="lazy")
    assert did.graphs == 1


# --- what asks for values -------------------------------------------------------------------------


def _through_a_file(x):
    file = io.BytesIO()
    y = x + 1
    torch.save([y, y[1:]], file)
    file.seek(0)
    y, part = torch.load(file, weights_only=True)
    part.add_(1)
    return y, part


def _as_module(x):
    layer = torch.nn.Linear(4, 3, bias=False, device=x.device)
    layer.load_state_dict({"weight": x + 1})
    return copy.deepcopy(layer).weight.detach()


def _storages_by_themselves(x):
    y, other = x + 1, x + 2
    memory = y.untyped_storage()
    sizes = [memory.nbytes(), len(memory), memory.data_ptr() == y.data_ptr()]
    other.untyped_storage().copy_(memory)
    y.add_(1)
    shrunk = x[0] + 1
    shrunk.untyped_storage().resize_(32)
    return y, other, sizes, torch.tensor(list(memory.cpu()[:4])).to(x.device), shrunk + 1


def _swapped(x):
    one, two = x + 1, x + 2
    torch.utils.swap_tensors(one, two)
    return one.add_(two), two


def _saved_on_the_host(x):
    x = (x + 1).detach().requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = x.exp().sum()
    y.backward()
    return x.grad


ASKING = {
    "sizes": lambda x: (x[x > 0], x.nonzero(), x.gt(0).long().unique()),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1,
    "numbers": lambda x: x * x.sum().item() + (1 if x.max() > 0 else 2),
    "lists": lambda x: ((x * 2).tolist(), [float(one) for one in x.sum(0)], f"{x.sum():.3f}"),
    "equality": lambda x: (torch.equal(x, x + 0), x.allclose(x * 1)),
    "sparse": lambda x: (x * x.gt(0)).to_sparse().to_dense() + 1,
    "copies": lambda x: (copy.copy(x + 1), copy.deepcopy(x + 1), torch.clone(x + 1)),
    "pickle": lambda x: pickle.loads(pickle.dumps(x + 1)),
    "file": _through_a_file,
    "numpy": lambda x: torch.from_numpy(np.asarray((x + 1).cpu())).to(x.device),
    "module": _as_module,
    "storages": _storages_by_themselves,
    "swapped": _swapped,
    "saved on the host": _saved_on_the_host,
}


@pytest.mark.parametrize("function", ASKING.values(), ids=ASKING)
def test_what_asks_for_values(function):
    check(function, REAL, executor="lazy")


def test_dlpack():
    with torch_jax.lazy():
        x = torch.arange(4.0).to("jax") + 1
        assert is_pending(x)
        assert jax.dlpack.from_dlpack(x).tolist() == [1, 2, 3, 4]
        torch.from_dlpack(x).mul_(2)
        assert x.tolist() == [2, 4, 6, 8]


RAISING = {
    "an index": (lambda x: x[torch.tensor([5], device=x.device)], REAL),
    "an embedding": (lambda x: F.embedding(x, x), INTS),
    "shapes": (lambda x: x @ x, REAL),
    "no elements": (lambda x: (x[:0] + 1).max(), REAL),
    "a division": (lambda x: x // torch.zeros_like(x), INTS),
    "a cast": (lambda x: (x + 1).add_(0.5), INTS),
    "a number": (lambda x: x.to(torch.uint8).add_(10**30), INTS),
}


@pytest.mark.parametrize("block", [torch_jax.lazy, torch_jax.fused])
@pytest.mark.parametrize("function, x", RAISING.values(), ids=RAISING)
def test_errors_are_raised_at_the_call_and_harm_nothing(function, x, block):
    with block():
        y = x.to("jax") + 2
        check_raises(function, x)
        y.add_(1)
    assert_same(y, x + 3)


# --- beside other ways to run ---------------------------------------------------------------------


def test_overrides_are_recorded():
    x = to_jax(REAL)
    override = torch_jax.default_env().override("aten::relu", lambda self: self * 3)
    with counted() as did, torch_jax.lazy(), override:
        y = (x + 1).relu() + 1
    assert did.graphs == 1
    assert_same(y, (REAL + 1) * 3 + 1)


def test_a_trace_of_the_users_sees_what_is_recorded():
    with torch_jax.lazy():
        x = to_jax(REAL) * 2
        function = jax.jit(lambda array: storage.memory_of(storage.wrap(array) + x))
        y = storage.wrap(function(storage.memory_of(to_jax(REAL)))) - x
    assert_same(y, REAL)


def test_a_tensor_of_one_truth_value_is_no_number():
    x = torch.ones(3, device="jax")
    with torch_jax.lazy():
        with counted() as did:
            y = (x.sum() > 2).logical_not().logical_not()
        assert did.graphs == 0
    assert y.item() is True


def test_mixed_with_compiled_functions():
    w = torch.ones(3, device="jax", requires_grad=True)
    step = torch_jax.jit(lambda x: (x * w).sum())
    with torch_jax.lazy():
        for n in range(3):
            x = torch.full((3,), float(n)).to("jax") + 1
            assert is_pending(x)
            assert (step(x) * 2).item() == 6 * (n + 1)
    with torch_jax.lazy():
        out = torch.zeros(3, device="jax") + 1
        write = torch_jax.jit(lambda x: out.add_(x))
        for _ in range(3):
            write(out * 2)
        out.mul_(2)
    assert out.tolist() == [54] * 3


@pytest.mark.slow
def test_mixed_with_graphs_of_dynamo_and_exports():
    with torch_jax.lazy():
        layer = torch.nn.Linear(3, 2).to("jax")
        with torch.no_grad():
            layer.weight.fill_(2.0)
            layer.bias.zero_().add_(1)
        x = torch.ones(4, 3).to("jax") * 2
        exported = torch_jax.export(layer, (x,))
        y = torch.compile(layer, backend="jax")(x) * 2
        y.sum().backward()
        gradient = layer.weight.grad
    assert (
        np.asarray(exported.call(jax.numpy.full((4, 3), 2.0, "float32"))).tolist() == [[13, 13]] * 4
    )
    assert y.tolist() == [[26, 26]] * 4 and gradient.tolist() == [[16.0] * 3] * 2
