"""Pinned memory: this device has none, and programs that ask for it on the CPU work without."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_jax

pytestmark = pytest.mark.filterwarnings("ignore:pin_memory does nothing")

FACTORIES = {
    "empty": lambda: torch.empty(2, pin_memory=True).fill_(1),
    "zeros": lambda: torch.zeros(2, pin_memory=True),
    "full": lambda: torch.full((2,), 3.0, pin_memory=True),
    "tensor": lambda: torch.tensor([1.0, 2.0], pin_memory=True),
    "arange": lambda: torch.arange(2, pin_memory=True),
    "empty_like": lambda: torch.zeros_like(torch.ones(2, device="cpu"), pin_memory=True),
    "new_zeros": lambda: torch.ones(2, device="cpu").new_zeros(2, pin_memory=True),
}


def test_a_tensor_on_the_cpu_stays_as_it_is():
    tensor = torch.arange(3.0)
    assert tensor.pin_memory() is tensor and not tensor.is_pinned()
    assert tensor.untyped_storage().pin_memory().nbytes() == 12


def test_tensors_of_the_device_stay_as_they_are():
    """CUDA refuses its own; here a loader pins whatever its data set gives."""
    tensor = torch.ones(2, 2, device="jax")
    assert tensor.pin_memory() is tensor and not tensor.is_pinned()
    batches = list(DataLoader(TensorDataset(tensor), batch_size=1, pin_memory=True))
    assert [batch.device.type for (batch,) in batches] == ["jax", "jax"]


def test_a_loader_that_pins():
    data = TensorDataset(torch.arange(6.0).view(3, 2))
    batches = list(DataLoader(data, batch_size=2, pin_memory=True))
    assert [batch.tolist() for (batch,) in batches] == [[[0, 1], [2, 3]], [[4, 5]]]
    assert all(batch.to("jax", non_blocking=True).cpu().equal(batch) for (batch,) in batches)


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_that_pin(name):
    """In an environment they make ordinary tensors; elsewhere C++ asks for an allocator."""
    with pytest.raises(NotImplementedError, match="getPinnedMemoryAllocator"):
        FACTORIES[name]()
    with torch_jax.default_env():
        made = FACTORIES[name]()
    assert made.device.type == "cpu" and not made.is_pinned() and made.shape == (2,)
