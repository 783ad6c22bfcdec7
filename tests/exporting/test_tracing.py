"""A model while it is exported: control flow, gradients, constants, fixed arguments."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import torch_jax
from torch_jax.core.tracers import NotTraceableError
from torch_jax.exporting import export

X = torch.linspace(-1, 1, 24).view(2, 3, 4)


def assert_same(model, *args) -> export.Exported:
    """The exported model computes what the model does; returns it."""
    expected = pytree.tree_leaves(copy.deepcopy(model)(*args))
    loaded = export.load(torch_jax.export(model, args).serialize())
    for found, wanted in zip(pytree.tree_leaves(loaded.call(*args)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, check_stride=False)
    return loaded


def forces(x):
    """The gradient of an energy, which is a part of the result."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        return torch.autograd.grad(at.sin().sum(), at)[0]


FUNCTIONS = {
    "cond": lambda x: torch.cond(x[0, 0, 0] > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
    "while_loop": lambda x: while_loop(
        lambda i, _: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
    ),
    "scan": lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(3, 4), x, dim=0),
    "map": lambda x: torch_map(lambda row: row.cumsum(0), x),
    "checkpoint": lambda x: checkpoint(torch.sin, x, use_reentrant=False),
    "forces": forces,
    "grad": torch.func.grad(lambda x: x.square().sum()),
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x[0, 0]),
    "vmap": torch.func.vmap(lambda row: row.softmax(-1)),
    "seed": lambda x: (torch.manual_seed(0), x * 2)[1],
    "to the CPU": lambda x: x.cpu().to(torch.device("cpu"), torch.float64) + x.new_ones(4).cpu(),
}


@pytest.fixture(scope="module", autouse=True)
def _patched():
    """What ``torch_jax.jit`` patches at its first use must not disturb an export."""
    torch_jax.jit(lambda x: x + 1)(X.to("jax"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    with torch.no_grad():
        assert_same(FUNCTIONS[name], X)


class Holder(nn.Module):
    """A model with tensors that are neither parameters nor buffers."""

    def __init__(self):
        super().__init__()
        self.scale, self.parts = torch.arange(4.0), [torch.ones(3, 1), torch.tensor(2.0)]
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        kept = torch.zeros(4, device="cpu") + 1
        lengths = torch.tensor([3, 2], device="cpu")
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return torch.cat([x * self.scale, self.parts[0] + x]) + self.parts[1] + kept, packed.data


def test_tensors_of_the_cpu_that_a_model_holds():
    model = Holder()
    assert_same(model, X)
    assert model.calls == 0 and model.scale.device.type == "cpu"


def test_large_constants_are_weights():
    inner, table = nn.Linear(64, 32), torch.randn(64, 64)
    with torch.no_grad():
        loaded = assert_same(lambda x: inner(x @ table), torch.randn(2, 64))
    assert [w.size for w in loaded.weights.values()] == [64 * 64, 32 * 64]
    assert len(loaded.mlir()) < 20_000
    model = nn.Module()
    model.register_buffer("constant_0", torch.randn(8))
    model.forward = lambda x: x @ table + model.constant_0.sum()
    assert list(assert_same(model, torch.randn(2, 64)).weights) == ["constant_0", "constant_0_"]


@pytest.mark.slow
def test_an_encoder_with_padding():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    x, padded = torch.randn(2, 5, 8), torch.arange(5) >= torch.tensor([[5], [3]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padded)
        exported = torch_jax.export(model, (x,), {"src_key_padding_mask": padded})
        moved = copy.deepcopy(model).to("jax")
        results = [
            exported.call(x, src_key_padding_mask=padded),
            moved(x.to("jax"), src_key_padding_mask=padded.to("jax")).cpu(),
        ]
    for result in results:
        torch.testing.assert_close(result[~padded], expected[~padded], rtol=1e-4, atol=1e-5)


def test_layers_that_are_scanned_elsewhere():
    layers = [nn.Linear(4, 4) for _ in range(3)]
    with torch.no_grad():
        assert_same(lambda x: torch_jax.scan_layers(layers, x), X)


def test_fixed_arguments_of_any_kind():
    def function(x, dtype, part, device, *, mode):
        return getattr(torch, mode)(x[part].to(dtype)).to(device)

    fixed = (torch.float64, slice(0, 1), torch.device("cpu"))
    exported = torch_jax.export(function, (X, *fixed), {"mode": "sin"})
    loaded = export.load(exported.serialize())
    torch.testing.assert_close(loaded.call(X, *fixed, mode="sin"), X[:1].double().sin())
    assert loaded.call(X.numpy(), *map(repr, fixed), mode="sin").dtype == np.float64
    with pytest.raises(ValueError, match=r"args\[1\] was exported as 'torch.float64'"):
        loaded.call(X, torch.float32, *fixed[1:], mode="sin")


def test_what_is_no_part_of_a_program():
    with pytest.raises(TypeError, match=r"args\[1\] is an array"):
        torch_jax.export(F.linear, (X, np.ones((4, 4), np.float32)))
    model = nn.Linear(4, 4).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch_jax.jit(model)(X.to("jax")).sum().backward()

    def step(x):
        optimizer.step()
        return model(x)

    with pytest.raises(NotTraceableError, match="use torch_jax.jit, or export the model alone"):
        torch_jax.export(step, (X,))
