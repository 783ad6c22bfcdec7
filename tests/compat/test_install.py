"""The finder of both bridges, and its tables."""

from __future__ import annotations

import importlib
import io
import sys

import pytest
import torch
from torch import nn

import torch_jax.compat
from torch_jax.compat import tables
from torch_jax.compat.xla import xla_model
from torch_jax.environment import redirects, regions

finder = sys.modules["torch_jax.compat.install"]


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(finder._FINDER, "packages", set())
    torch_jax.compat.install()
    yield
    regions.take_xla(False)
    for name in [name for name in sys.modules if name.split(".")[0] in ("torch_xla", "torchax")]:
        del sys.modules[name]


def test_every_row_of_the_tables_holds(installed):
    torch_jax.compat.install()
    assert sys.meta_path.count(finder._FINDER) == 1
    for name, file in tables.MODULES.items():
        module = importlib.import_module(name)
        if file:
            source = importlib.import_module(f"torch_jax.compat.{file}")
            for public, value in finder.public_names(source).items():
                assert getattr(module, public) is value, (name, public)
    for name in tables.NOT_CARRIED:
        path, _, last = name.rpartition(".")
        module = importlib.import_module(path)
        with pytest.raises(AttributeError, match="is not carried over by torch_jax: "):
            getattr(module, "no_such_name" if last == "*" else last)


def _on_xla():
    """Tensors, modules, generators of ``"xla"``, in the ways of naming it."""
    device = torch.device("xla")
    yield torch.tensor([1.0], device="xla")
    yield torch.zeros(2, device=device)
    yield torch.zeros(2).to("xla")
    yield torch.zeros(2).to(torch.device("xla", 0), torch.float64)
    yield torch.rand_like(torch.zeros(2), device="xla:0")
    yield torch.zeros(2).new_ones(2, device=device)
    yield nn.Linear(2, 3).to(device).weight
    yield nn.Linear(2, 3, device="xla").weight
    yield torch.Generator(device="xla")
    with device:
        yield torch.zeros(2)
    file = io.BytesIO()
    torch.save(torch.zeros(2), file)
    file.seek(0)
    yield torch.load(file, map_location="xla")
    add = torch.compile(lambda x: x + torch.ones(2, device="xla"), backend="jax")
    yield add(torch.zeros(2, device="xla"))


def test_the_device_xla_is_jax(installed):
    assert {made.device for made in _on_xla()} == {torch.device("jax", 0)}
    assert torch.zeros(1).device.type == "cpu"
    with torch.autocast("xla", dtype=torch.bfloat16):
        x = torch.ones(2, 2, device="xla")
        assert (x @ x).dtype == torch.bfloat16 and torch.is_autocast_enabled("xla")
    with pytest.raises(
        (AssertionError, RuntimeError), match="NVIDIA" if torch.version.cuda else "CUDA"
    ):
        torch.ones(1, device="cuda")


def test_the_device_xla_is_unknown_before():
    redirects.install()
    with pytest.raises((NotImplementedError, RuntimeError), match="XLA|xla"):
        torch.ones(2, device="xla")


def test_what_is_missing_says_what_to_use_instead(installed):
    import torch_xla
    import torchax

    assert torch_xla.core.xla_model.all_reduce is xla_model.all_reduce
    assert torchax.interop.JittableModule.__name__ == "JittableModule"
    with pytest.raises(ModuleNotFoundError, match="torch_jax.initialize"):
        importlib.import_module("torch_xla.distributed.xla_dist")
    with pytest.raises(AttributeError, match="docs/migrate.md"):
        torchax.no_such_name  # noqa: B018
    assert not hasattr(torch_xla, "__wrapped__")


def test_one_bridge_alone(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(finder._FINDER, "packages", set())
    with pytest.raises(ValueError, match="the bridges are torch_xla, torchax, not tensorflow"):
        torch_jax.compat.install("tensorflow")
    torch_jax.compat.install("torchax")
    assert importlib.util.find_spec("torchax.interop") is not None
    assert importlib.util.find_spec("torch_xla") is None
    del sys.modules["torchax"]
