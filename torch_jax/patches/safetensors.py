"""safetensors checks device names in Rust: a file is read on the CPU, and its tensors moved."""

from __future__ import annotations

from typing import Any

from torch_jax._private import pytorch
from torch_jax.core.patching import patch


@patch("safetensors.safe_open", "safetensors")
def _patch_safe_open(original: Any) -> Any:
    """safetensors knows no device "jax": files open on the CPU, and each tensor moves when read."""

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
        if str(device).partition(":")[0] != pytorch.DEVICE_TYPE:
            return original(filename, framework, device=device, **kwargs)
        return _OnJax(original(filename, framework, device="cpu", **kwargs))

    return safe_open


class _OnJax:
    """An open safetensors file (or a slice of one) whose tensors come out on device jax."""

    def __init__(self, inner: Any):
        self._inner = inner

    def __enter__(self) -> _OnJax:
        self._inner.__enter__()
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._inner.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __getitem__(self, index: Any) -> Any:
        return self._inner[index].to(pytorch.DEVICE_TYPE)

    def get_tensor(self, name: str) -> Any:
        """Return one tensor of the file."""
        return self._inner.get_tensor(name).to(pytorch.DEVICE_TYPE)

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors of the file, by name."""
        tensors = self._inner.get_tensors()
        return {name: tensor.to(pytorch.DEVICE_TYPE) for name, tensor in tensors.items()}

    def get_slice(self, name: str) -> _OnJax:
        """Return a tensor of the file that is read when it is indexed."""
        return _OnJax(self._inner.get_slice(name))
