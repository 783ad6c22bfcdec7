"""Arguments of ``export``, ``load`` and a loaded program, and errors for all others."""

from __future__ import annotations

import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import torch_jax
from torch_jax.exporting import export, exported_file

X = torch.linspace(-1, 1, 12).view(3, 4)
ROWS = {0: torch.export.Dim("rows", max=8)}


@pytest.fixture(scope="module")
def model():
    """A small model."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 2), nn.ReLU())


@pytest.fixture(scope="module")
def exported(model):
    """The model, exported."""
    return torch_jax.export(model, (X,))


def test_pickled_it_stays_what_it_is(model, exported):
    again = pickle.loads(pickle.dumps(exported))
    y = X.clone().requires_grad_()
    again.call(y).sum().backward()
    torch.testing.assert_close(again.call(X), model(X).detach())
    assert y.grad is not None and type(again) is export.Exported
    alone = exported_file.load(exported.serialize())
    assert type(pickle.loads(pickle.dumps(alone))) is exported_file.Exported


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, io.BytesIO])
def test_bytes_of_any_kind(model, exported, kind):
    loaded = export.load(kind(exported.serialize()))
    torch.testing.assert_close(loaded.call(X), model(X).detach())


def test_what_is_no_file():
    for nothing in (None, 3):
        with pytest.raises(TypeError, match="PathLike"):
            export.load(nothing)


def test_platforms_are_named(model):
    assert torch_jax.export(model, (X,), platforms="cpu").header["platforms"] == ["cpu"]
    assert torch_jax.export(model, [X], platforms=["cuda"]).header["platforms"] == ["cuda"]
    with pytest.raises(ValueError, match="'rocm'.*, not 'gpu'"):
        torch_jax.export(model, (X,), platforms=("cpu", "gpu"))


def test_arguments_come_in_a_tuple(model):
    with pytest.raises(TypeError, match=r"a tuple of arguments, \(x,\), not a Tensor"):
        torch_jax.export(model, X)


def test_a_batch_of_calls(exported):
    batch = jnp.ones((2, 3, 4))
    for call in (
        jax.vmap(exported.call),
        lambda x: torch.func.vmap(exported.call)(torch.ones(x.shape)),
    ):
        with pytest.raises(
            NotImplementedError, match=r"take jax.lax.map, or export the model with"
        ):
            call(batch)
    assert jax.lax.map(exported.call, batch).shape == (2, 3, 2)


def test_tensors_and_arrays_in_one_call():
    exported = torch_jax.export(lambda a, b, c: a + b + c, (X, X, X))
    result = exported.call(X, X.numpy(), jnp.asarray(X.numpy()))
    torch.testing.assert_close(result, 3 * X)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "on the device", "fixed argument"])
def test_sizes_that_may_change_for_models_of_any_kind(kind):
    torch.manual_seed(0)
    layer, args, shapes = nn.Linear(4, 2), (X,), (ROWS,)
    given = {
        "function": lambda x: x.relu() + x.shape[0],
        "on the device": nn.Linear(4, 2).to("jax"),
        "fixed argument": lambda x, n: layer(x) * n,
    }[kind]
    if kind == "on the device":
        given.load_state_dict(layer.state_dict())
        args, model = (X.to("jax"),), layer
    if kind == "fixed argument":
        args, shapes = (X, 3), (ROWS, None)
    model = layer if kind == "on the device" else given
    exported = torch_jax.export(given, args, dynamic_shapes=shapes)
    y = torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(exported.call(y, *args[1:]), model(y, *args[1:]))
    if kind == "on the device":
        assert all(p.device.type == "jax" for p in given.parameters())
    assert exported.call(np.ones((7, 4), np.float32), *args[1:]).shape[0] == 7


def test_a_program_whose_argument_is_named_key():
    class Adds(torch.nn.Module):
        def forward(self, x, *, value, key):
            return x + 2 * key + 3 * value

    x = torch.ones(2)
    program = torch.export.export(Adds(), (x,), {"value": x, "key": -x})
    exported = torch_jax.export(program)
    torch.testing.assert_close(exported.call(x, value=x, key=-x), Adds()(x, value=x, key=-x))
