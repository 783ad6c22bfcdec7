"""A library's choice of the device: this one, unless the program names another."""

from __future__ import annotations

from unittest import mock

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from torch import nn

import torch_jax
from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.integrations.adapt import choice


@pytest.fixture(autouse=True)
def fresh():
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def test_the_device_is_taken_and_named_by_its_number():
    assert accelerate.Accelerator().device == torch.device("jax", 0)


def test_the_cpu_is_taken_where_it_is_asked_for(monkeypatch):
    assert accelerate.Accelerator(cpu=True).device.type == "cpu"
    AcceleratorState._reset_state(True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert accelerate.Accelerator().device.type == "cpu"
    AcceleratorState._reset_state(True)
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert accelerate.Accelerator().device.type == "cpu"


def test_cuda_comes_first_where_it_is():
    with (
        mock.patch.object(pytorch, "has_cuda", lambda: True),
        mock.patch.object(torch.cuda, "is_available", lambda: True),
    ):
        assert not choice.is_chosen()
        assert PartialState.default_device.fget(mock.Mock()).type == "cuda"
    assert choice.is_chosen()


def test_the_device_has_its_own_name_where_it_also_answers_for_cuda():
    config.set("redirect_cuda", True)
    try:
        with torch_jax.default_env():
            assert torch.cuda.is_available()
            assert accelerate.Accelerator().device == torch.device("jax", 0)
    finally:
        config.set("redirect_cuda", False)


def test_lists_of_devices_get_one_more():
    def kind(name, *, default="none"):
        """What it is."""
        return "fast" if name in ("cuda", "xpu") else default

    made = choice.admit(kind, "xpu")
    assert (made("jax"), made("cuda"), made("cpu")) == ("fast", "fast", "none")
    assert kind("jax") == "none" and made.__doc__ == "What it is."


def test_a_checkpoint_of_accelerate_has_the_random_state(tmp_path):
    accelerator = accelerate.Accelerator()
    layer = accelerator.prepare(nn.Linear(2, 2))
    assert layer.weight.device.type == "jax"
    accelerator.save_state(str(tmp_path))
    expected = torch.rand(3, device="jax")
    accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.rand(3, device="jax"), expected)
