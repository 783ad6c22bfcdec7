"""Tensors whose memory is yet to be computed are like all others, whatever is done to them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import torch_jax
from tests.support.compare import assert_same
from tests.support.lazily import is_pending


def both(function: Callable[[Callable[..., torch.Tensor]], Any]) -> None:
    """Run with tensors of the CPU, then recorded with the same on the device, and compare."""

    def give(on_device: bool) -> Callable[..., torch.Tensor]:
        numbers = torch.Generator().manual_seed(0)

        def make(*shape: int, grad: bool = False) -> torch.Tensor:
            value = torch.randn(*shape, generator=numbers)
            if not on_device:
                return value.requires_grad_(grad)
            # an operator has been written down, and its result is to be computed
            return (value.to("jax") + 0.0).requires_grad_(grad)

        return make

    expected = function(give(False))
    with torch_jax.lazy():
        x = give(True)(2)
        assert is_pending(x)
        actual = function(give(True))
        inside = to_host(actual)
        torch_jax.sync()
    assert_same(actual, expected)
    assert_same_on_host(inside, expected)


def to_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return [to_host(one) for one in value] if isinstance(value, list | tuple) else value


def assert_same_on_host(actual: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected.detach(), rtol=2e-5, atol=2e-5)
    elif isinstance(expected, list | tuple):
        for one, two in zip(actual, expected, strict=True):
            assert_same_on_host(one, two)


def saved(value: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_numpy(value: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(value.cpu())).to(value.device)


def as_module(value: torch.Tensor) -> torch.Tensor:
    layer = torch.nn.Linear(4, 3, bias=False, device=value.device)
    layer.load_state_dict({"weight": value})
    return copy.deepcopy(layer).weight


@pytest.mark.parametrize(
    "way",
    [copy.copy, copy.deepcopy, saved, through_numpy, as_module, torch.clone],
    ids=lambda way: way.__name__,
)
def test_copies(way):
    both(lambda make: way(make(3, 4)))


def test_pickled():
    both(lambda make: pickle.loads(pickle.dumps(make(3))))


def test_views_are_saved_with_what_they_share():
    def share(make):
        x = make(4)
        file = io.BytesIO()
        torch.save([x, x[1:]], file)
        file.seek(0)
        x, part = torch.load(file, weights_only=True)
        part.add_(1)
        return [x, part]

    both(share)


def test_dlpack():
    with torch_jax.lazy():
        x = torch.arange(4.0).to("jax") + 1
        assert is_pending(x)
        assert jax.dlpack.from_dlpack(x).tolist() == [1, 2, 3, 4]
        y = torch.from_dlpack(x)
        y.mul_(2)
        assert x.tolist() == [2, 4, 6, 8]


def test_numpy_and_numbers():
    with torch_jax.lazy():
        x = torch.arange(3.0).to("jax") * 2
        assert np.asarray(x.cpu()).tolist() == [0, 2, 4]
        y = x.sum()
        assert float(y) == 6 and int(y) == 6 and bool(y) and y.item() == 6
        assert f"{x + 1}" == "tensor([1., 3., 5.], device='jax:0')"
        assert [float(one) for one in x] == [0, 2, 4]


# --- storages -------------------------------------------------------------------------------------


def view_of_what_is_pending(make):
    x = make(4, 4)
    return [x[1], x.t(), x.view(2, 8)[:, 2:4], x.diagonal(), x.unfold(0, 2, 1)]


def written_through_views(make):
    x = make(4, 4)
    x[1].mul_(2)
    x.t()[2].add_(1)
    x.view(16)[3:5].zero_()
    x[:, 1:3] = x[:, :2].clone()
    return [x, x.diagonal()]


def resized(make):
    x = make(4)
    x.resize_(2)
    x.add_(1)
    y = make(2)
    y.resize_(2, 3)
    y.copy_(torch.arange(6.0).view(2, 3))
    return [x, y]


def set_to_another(make):
    x, y = make(4), make(4)
    x.set_(y)
    y.add_(1)
    z = make(4)
    z.set_(y.untyped_storage(), 1, (2,), (1,))
    z.mul_(2)
    return [x, y, z]


def data_swapped(make):
    x, y = make(4), make(4)
    x.data = y * 2
    x.data.add_(1)
    return [x, y]


def storages_by_themselves(make):
    x = make(4)
    storage = x.untyped_storage()
    sizes = [storage.nbytes(), len(storage), storage.data_ptr() == x.data_ptr()]
    other = make(4)
    other.untyped_storage().copy_(storage)
    x.add_(1)
    return [x, other, sizes, torch.tensor(list(storage.cpu()[:4])).to(x.device)]


def storage_resized(make):
    x = make(4)
    x.untyped_storage().resize_(32)
    return x.add(1)


def complex_views(make):
    x = torch.complex(make(3), make(3))
    x.imag.mul_(2)
    y = x.conj()
    return [x, y + 1, torch.view_as_real(x)]


def bits(make):
    return make(4).view(torch.int32).view(torch.float32)


def swapped(make):
    x, y = make(2), make(2)
    x, y = y, x
    x.add_(y)
    torch.utils.swap_tensors(x, y)
    return [x, y]


STORAGES = [
    view_of_what_is_pending, written_through_views, resized, set_to_another, data_swapped,
    storages_by_themselves, storage_resized, complex_views, bits, swapped,
]  # fmt: skip


@pytest.mark.parametrize("function", STORAGES, ids=lambda function: function.__name__)
def test_storages(function):
    both(function)


# --- autograd -------------------------------------------------------------------------------------


def hooks(make):
    x, seen = make(3, grad=True), []
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    x.register_hook(lambda gradient: seen.append(gradient.clone()))
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad * 2))
    y.sum().backward()
    return [x.grad, *seen]


def checkpointed(make):
    x, w = make(3, 4, grad=True), make(4, 4, grad=True)

    def block(x):
        return (x @ w).tanh() @ w

    checkpoint(
        block, checkpoint(block, x, use_reentrant=False), use_reentrant=True
    ).sum().backward()
    return [x.grad, w.grad]


def double_backward(make):
    x = make(3, grad=True)
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (gradient**2).sum().backward()
    return [gradient, x.grad]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + x


def function_of_the_users(make):
    x = make(3, grad=True)
    Doubled.apply(x * 1).sum().backward()
    return x.grad


def accumulated(make):
    x = make(3, grad=True)
    for _ in range(3):
        (x * x).sum().backward()
    x.grad.mul_(2)
    return x.grad


def written_inputs(make):
    x = make(3, 3, grad=True)
    y = x * 1
    y[0] = 2.0
    y[1:].mul_(x[1:])
    y.sum().backward()
    return [y, x.grad]


def transforms(make):
    x = make(3)
    return [
        torch.func.grad(lambda x: (x**3).sum())(x),
        torch.func.vmap(lambda row: row.sum())(make(2, 3)),
        torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),)),
    ]


def saved_on_the_host(make):
    x = make(3, grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = x.exp().sum()
    y.backward()
    return x.grad


AUTOGRAD = [
    hooks, checkpointed, double_backward, function_of_the_users, accumulated, written_inputs,
    transforms, saved_on_the_host,
]  # fmt: skip


@pytest.mark.parametrize("function", AUTOGRAD, ids=lambda function: function.__name__)
def test_autograd(function):
    both(function)


def test_autograd_raises_what_it_raises():
    def twice(x):
        y = (x * x).sum()
        y.backward()
        y.backward()

    def written_meanwhile(x):
        y = x * 1
        z = y.exp()
        z.add_(1)
        z.sum().backward()

    def into_a_leaf(x):
        x.add_(1)

    for wrong in (twice, written_meanwhile, into_a_leaf):
        with pytest.raises(RuntimeError) as expected:
            wrong(torch.ones(2, requires_grad=True))
        with torch_jax.lazy(), pytest.raises(RuntimeError) as actual:
            wrong(torch.ones(2, device="jax", requires_grad=True))
        assert str(actual.value)[:40] == str(expected.value)[:40]


# --- errors, and other ways to run ----------------------------------------------------------------


def test_an_exception_leaves_every_tensor_as_eager_code_does():
    def work(x, rows, raise_at):
        for at in range(4):
            x.add_(at)
            rows[at].copy_(x)
            if at == raise_at:
                raise KeyError(at)
            x.mul_(2)

    for raise_at in range(4):
        expected = torch.ones(2), torch.zeros(4, 2)
        actual = tuple(tensor.to("jax") for tensor in expected)
        with pytest.raises(KeyError):
            work(*expected, raise_at)
        with pytest.raises(KeyError), torch_jax.lazy():
            work(*actual, raise_at)
        assert_same(actual, expected)


def test_errors_of_operators_come_at_once_and_harm_nothing():
    with torch_jax.lazy():
        x = torch.ones(3).to("jax") * 2
        with pytest.raises(RuntimeError, match="broadcast"):
            x + torch.ones(4, device="jax")
        with pytest.raises(IndexError):
            x[torch.tensor([5], device="jax")]
        with pytest.raises(IndexError):
            F.embedding(torch.tensor([9], device="jax"), torch.ones(3, 2, device="jax"))
        x.add_(1)
    assert x.tolist() == [3, 3, 3]


def test_mixed_with_compiled_functions():
    w = torch.ones(3, device="jax", requires_grad=True)
    step = torch_jax.jit(lambda x: (x * w).sum())
    with torch_jax.lazy():
        for n in range(3):
            x = torch.full((3,), float(n)).to("jax") + 1
            assert is_pending(x)
            y = step(x) * 2
            assert y.item() == 6 * (n + 1)
    with torch_jax.lazy():
        out = torch.zeros(3, device="jax") + 1

        @torch_jax.jit
        def write(x):
            out.add_(x)

        for _ in range(3):
            write(out * 2)
        out.mul_(2)
    assert out.tolist() == [54] * 3


@pytest.mark.slow
def test_mixed_with_graphs_of_dynamo():
    layer = torch.nn.Linear(3, 2).to("jax")
    compiled = torch.compile(layer, backend="jax")
    with torch_jax.lazy():
        x = torch.ones(4, 3).to("jax") * 2
        y = compiled(x) * 2
        y.sum().backward()
        gradient = layer.weight.grad
    assert_same(y.detach(), layer(x).detach().cpu() * 2)
    assert gradient.tolist() == [[16.0] * 3] * 2


def test_mixed_with_exports():
    with torch_jax.lazy():
        layer = torch.nn.Linear(3, 2).to("jax")
        with torch.no_grad():
            layer.weight.fill_(2.0)
            layer.bias.zero_().add_(1)
        x = torch.ones(4, 3).to("jax") * 2
        exported = torch_jax.export(layer, (x,))
        y = exported.call(jax.numpy.full((4, 3), 2.0, "float32"))
    assert np.asarray(y).tolist() == [[13.0, 13.0]] * 4


def test_blocks_within_blocks():
    with torch_jax.lazy():
        x = torch.ones(2).to("jax") + 1
        with torch_jax.lazy():
            y = x * 2
        assert is_pending(x) and is_pending(y)
    assert not is_pending(x) and y.tolist() == [4, 4]
