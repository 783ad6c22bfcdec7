"""What ``torch.UntypedStorage`` must know of storages that hold a ``jax.Array``.

PyTorch's C++ sees no memory behind these. Saving, pickling, copying and telling storages apart all
go through methods of the storage, so these are given to it when the device is first used.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torch_jax.core.patching import AT_FIRST_USE, patch
from torch_jax.memory import storage, transfer

if TYPE_CHECKING:
    import jax

# C++ sees no memory behind these tensors, so addresses are made up: unique, and never mapped.
_addresses = itertools.count(1 << 46, 1 << 20)


class _JaxStorage:
    """Methods of an untyped storage whose bytes are those of ``array`` in row-major order.

    ``array`` is immutable: a write puts a new array here, and every alias sees it. PyTorch wants
    storages of exactly the class ``torch.UntypedStorage``, so these are put beside its own methods,
    for storages that have an ``array``.
    """

    array: jax.Array
    _address: int

    def nbytes(self) -> int:
        """Size in bytes."""
        return self.array.size * self.array.dtype.itemsize

    __len__ = nbytes

    def data_ptr(self) -> int:
        """A stable number that no other living storage has; it is not an address of memory."""
        if self.array.size == 0:
            return 0
        if "_address" not in self.__dict__:
            pages = _JaxStorage.nbytes(self) >> 20
            self._address = next(itertools.islice(_addresses, pages, None))
        return self._address

    def resize_(self, size: int) -> Any:
        """Set the size in bytes; new bytes at the end are zero."""
        storage.resize(self, size)
        return self

    def cpu(self) -> torch.UntypedStorage:
        """The bytes in host memory."""
        return transfer.host_copy(storage.memory_in(self)).untyped_storage()

    def copy_(self, source: Any, non_blocking: bool = False) -> Any:
        """Take over the bytes of ``source``, a storage of the same size on any device."""
        if source.nbytes() != _JaxStorage.nbytes(self):
            raise RuntimeError(
                f"size does not match, self was {self.nbytes()} bytes but source was "
                f"{source.nbytes()} bytes"
            )
        ours = storage.is_jax_storage(source)
        storage.replace(self, storage.memory_in(source) if ours else _bytes_of(source))
        return self

    def tolist(self) -> list[int]:
        """The bytes as a list."""
        return _JaxStorage.cpu(self).tolist()

    def __getitem__(self, index: Any) -> Any:
        return _JaxStorage.cpu(self)[index]

    def _write_file(self, *args: Any) -> None:
        _JaxStorage.cpu(self)._write_file(*args)

    def _set_from_file(self, *args: Any) -> Any:
        host = torch.UntypedStorage(_JaxStorage.nbytes(self))
        host._set_from_file(*args)
        return _JaxStorage.copy_(self, host)


@patch("torch.UntypedStorage.copy_", AT_FIRST_USE)
def _copy_to_host(original: Any) -> Any:
    """C++ sees no bytes in a storage of this device, to copy from or to."""
    either = _either(_JaxStorage.copy_, original)

    @functools.wraps(original)
    def copy_(self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        crosses = storage.is_jax_storage(src) and not storage.is_jax_storage(self)
        return either(self, src.cpu() if crosses else src, *args, **kwargs)

    return copy_


def _either(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (ours if storage.is_jax_storage(self) else theirs)(self, *args, **kwargs)

    return method


def _bytes_of(source: torch.UntypedStorage) -> jax.Array:
    return transfer.array_of(torch.empty(0, dtype=torch.uint8, device="cpu").set_(source))


for _name, _ours in vars(_JaxStorage).items():
    if callable(_ours) and _name != "copy_":
        patch(
            f"torch.UntypedStorage.{_name}",
            AT_FIRST_USE,
            why="C++ sees no bytes in a storage of this device: they are in its ``jax.Array``.",
        )(functools.partial(_either, _ours))
