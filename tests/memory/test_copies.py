"""Copies: their strides, tensors for other libraries, and memory that was never written."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.utils.dlpack
from torch import nn
from torch.nn import functional as F

from tests.support.compare import assert_same, check, check_raises

# --- strides --------------------------------------------------------------------------------------


def channels_last() -> torch.Tensor:
    return torch.arange(96.0).view(2, 3, 4, 4).to(memory_format=torch.channels_last)


VIEWS = {
    "sliced": lambda x: x[:, :, 1:],
    "other channels": lambda x: x[:, 1:],
    "stepped": lambda x: x[:, :, :, ::2],
    "expanded": lambda x: x[:, :, :1].expand(2, 3, 5, 4),
    "permuted": lambda x: x.permute(2, 0, 3, 1)[1:, :, ::2],
    "overlapping": lambda x: x.as_strided((3, 3), (1, 1)),
}
COPIES = {
    "clone": lambda x: x.clone(),
    "dtype": lambda x: x.to(torch.float16),
    "copy": lambda x: x.to(x.dtype, copy=True),
    "empty": lambda x: torch.zeros_like(x),
}


@pytest.mark.parametrize("view", VIEWS)
def test_copies_of_views_that_are_not_dense_have_the_strides_of_the_cpu(view):
    check(lambda x: [copy(VIEWS[view](x)) for copy in COPIES.values()], channels_last())


@pytest.mark.parametrize("view", VIEWS)
def test_copies_between_devices_have_these_strides_too(view):
    there = VIEWS[view](channels_last())
    assert_same(there.to("jax"), there.clone())
    assert torch.equal(VIEWS[view](channels_last().to("jax")).cpu(), there)


def test_strides_of_one_channel_are_those_asked_for():
    x = torch.randn(8, 1, 3, 3)  # contiguous in both senses
    expected = x.to(memory_format=torch.channels_last).stride()
    assert x.to("jax").to(memory_format=torch.channels_last).stride() == expected
    assert x.to("jax", memory_format=torch.channels_last).stride() == expected


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(3, 2, 1), nn.BatchNorm2d(3), nn.MaxPool2d(1)],
    ids=lambda x: type(x).__name__,
)
def test_sliced_images_in_channels_last_stay_so(layer):
    result = layer.to("jax")(channels_last().to("jax")[:, :, 1:])
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert not layer(channels_last().contiguous().to("jax")[:, :, 1:]).is_contiguous(
        memory_format=torch.channels_last
    )


def test_a_tensor_is_filled_by_a_number():
    check(lambda x: x.copy_(2.0), torch.zeros(2, 3))
    check(lambda x: x.copy_(2), torch.zeros(2, 3, dtype=torch.int64).t())


def test_a_lazy_clone_is_a_copy():
    def write(x: torch.Tensor) -> torch.Tensor:
        copy = x._lazy_clone()
        x.add_(1)
        return copy

    check(write, torch.arange(3.0))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_tensors_know_whether_they_are_set_alike(device):
    x = torch.ones(2, 3, device=device)
    assert x.is_set_to(x) and x.is_set_to(x.view(2, 3))
    assert not any(x.is_set_to(y) for y in (x.clone(), x[:1], x.t(), x[1:]))


# --- memory that nobody has written ---------------------------------------------------------------


def test_deterministic_algorithms_fill_new_memory():
    def made(device: str) -> list[torch.Tensor]:
        dtypes = torch.float32, torch.float16, torch.int32, torch.bool, torch.complex64
        return [
            *(torch.empty(2, dtype=dtype, device=device) for dtype in dtypes),
            torch.empty_strided((2, 3), (1, 2), device=device),
            torch.ones(2, device=device).resize_(4),
            torch.zeros(2, device=device),
        ]

    torch.use_deterministic_algorithms(True)
    try:
        filled = made("jax"), made("cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(*filled)
    assert torch.empty(2, device="jax").tolist() == [0, 0]


# --- DLPack ---------------------------------------------------------------------------------------


def view(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(6, device=device).to(dtype).view(2, 3).t()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.int32, torch.complex64], ids=lambda dtype: str(dtype)
)
def test_numpy_and_jax_take_copies(dtype):
    expected = np.asarray(view("cpu", dtype))
    for take in (np.from_dlpack, jnp.from_dlpack):
        taken = take(view("jax", dtype))
        assert taken.dtype == expected.dtype and (np.asarray(taken) == expected).all()


def test_what_a_consumer_writes_reaches_no_tensor():
    x = torch.ones(2, device="jax")
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).add_(1)
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_pytorch_takes_its_own_tensors_as_they_are(device):
    x = torch.ones(2, device=device)
    torch.from_dlpack(x).add_(1)
    assert x.tolist() == [2, 2]
    torch.from_dlpack(x, copy=True).add_(1)
    assert x.tolist() == [2, 2]
    assert torch.from_dlpack(x).device == x.device


@pytest.mark.parametrize("take", [torch.from_dlpack, np.from_dlpack], ids=["torch", "numpy"])
def test_tensors_that_require_gradients_are_refused(take):
    check_raises(lambda x: take(x), torch.ones(2, requires_grad=True))


# --- jagged tensors -------------------------------------------------------------------------------


@pytest.mark.slow
def test_attention_over_jagged_tensors():
    def attend(*rows: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
        heads = nested.unflatten(-1, (2, 4)).transpose(1, 2)
        return (F.scaled_dot_product_attention(heads, heads * 2, heads) + heads).values()

    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(n, 8, generator=generator).requires_grad_() for n in (2, 5)]
    check(attend, *rows, strides=False)
