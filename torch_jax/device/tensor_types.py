"""``torch.jax.FloatTensor`` and similar: the names that ``Tensor.type()`` gives.

They are PyTorch's oldest way to name a dtype and a device at once, and programs still compare with
them. See https://docs.pytorch.org/docs/stable/tensors.html#data-types

>>> x = torch.ones(2, device="jax")
>>> x.type(), isinstance(x, torch.jax.FloatTensor), x.type(torch.jax.LongTensor).dtype
('torch.jax.FloatTensor', True, torch.int64)
"""

from __future__ import annotations

from typing import Any

import torch

from torch_jax._private import pytorch

_NAMES = "Bool Byte Char Short Int Long Half BFloat16 Float Double".split()


class Kind(type):
    """The type of such a name: instances are the tensors of its dtype on the device."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        if not isinstance(instance, torch.Tensor) or instance.dtype != cls.dtype:
            return False
        return instance.device.type == pytorch.DEVICE_TYPE

    def __call__(cls, *args: Any) -> torch.Tensor:
        """Return a tensor of sizes, or of data, as ``torch.FloatTensor`` does on the CPU."""
        on_cpu = getattr(torch, cls.__name__.rpartition(".")[2])
        return on_cpu(*args).to(pytorch.DEVICE_TYPE)


def kinds() -> dict[str, type]:
    """Return the types by name."""
    dtypes = {f"{name}Tensor": getattr(torch, f"{name}Tensor").dtype for name in _NAMES}
    # C++ reads the kind of tensor from the name of the type
    return {
        name: Kind(f"torch.{pytorch.DEVICE_TYPE}.{name}", (), {"dtype": dtype})
        for name, dtype in dtypes.items()
    }
