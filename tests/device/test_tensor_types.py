"""The names that ``Tensor.type()`` gives exist, and can be given back."""

from __future__ import annotations

import pytest
import torch

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_type_is_what_its_name_says(dtype):
    x = torch.zeros(2, dtype=dtype, device="jax")
    kind = getattr(torch.jax, x.type().removeprefix("torch.jax."))
    assert isinstance(x, kind) and not isinstance(x.cpu(), kind)
    assert x.cpu().type() == x.type().replace("torch.jax.", "torch.")
    for name in (kind, x.type()):
        y = torch.ones(2, device="jax").type(name)
        assert (y.dtype, y.device) == (x.dtype, x.device)
    assert sum(isinstance(x, other) for other in _kinds()) == 1


def _kinds():
    return [value for name, value in vars(torch.jax).items() if name.endswith("Tensor")]


def test_tensors_are_made_as_on_the_cpu():
    assert torch.jax.FloatTensor(2, 3).shape == (2, 3)
    made = torch.jax.LongTensor([1, 2])
    assert made.tolist() == [1, 2] and made.device.type == "jax"
    with pytest.raises(TypeError):
        torch.jax.FloatTensor("x")
