"""The finder of both bridges, and its tables."""

from __future__ import annotations

import importlib
import sys

import pytest

import torch_jax.compat
from torch_jax.compat import tables
from torch_jax.compat.xla import collectives

finder = sys.modules["torch_jax.compat.install"]


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(finder._FINDER, "packages", set())
    torch_jax.compat.install()
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("torch_xla", "torchax")]:
        del sys.modules[name]


def test_every_row_of_the_tables_holds(installed):
    torch_jax.compat.install()
    assert sys.meta_path.count(finder._FINDER) == 1
    for name, own in tables.MODULES.items():
        module = importlib.import_module(name)
        source = importlib.import_module(f"torch_jax.compat.{own}")
        for public, value in finder.public_names(source).items():
            assert getattr(module, public) is value, (name, public)
    for name in tables.NOT_CARRIED:
        path, _, last = name.rpartition(".")
        module = importlib.import_module(path)
        with pytest.raises(AttributeError, match="is not carried over by torch_jax: "):
            getattr(module, "no_such_name" if last == "*" else last)


def test_what_is_missing_says_what_to_use_instead(installed):
    import torch_xla
    import torchax

    assert torch_xla.core.xla_model.all_reduce is collectives.all_reduce
    assert torchax.interop.JittableModule.__name__ == "JittableModule"
    with pytest.raises(ModuleNotFoundError, match="torch_jax.initialize"):
        importlib.import_module("torch_xla.distributed.xla_dist")
    with pytest.raises(AttributeError, match="from-torchax.md"):
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
