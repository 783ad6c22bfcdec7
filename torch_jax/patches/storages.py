"""Methods of ``torch.UntypedStorage`` for storages that hold a ``jax.Array``.

PyTorch's C++ sees no memory behind these. Saving, pickling, copying and comparing storages all
call methods of the storage, which are replaced when the device is first used.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

from torch_jax.core.patching import AT_FIRST_USE, around, patch
from torch_jax.memory import storage, transfer

# C++ sees no memory behind these tensors, so their addresses are made up: unique, never mapped.
_addresses = itertools.count(1 << 46, 1 << 20)


class _JaxStorage:
    """Methods of an untyped storage whose bytes are those of ``array`` in row-major order.

    ``array`` is immutable: a write stores a new array here, and every alias sees it. PyTorch wants
    storages of exactly the class ``torch.UntypedStorage``, so these methods are added beside its
    own, for storages that have an ``array``.
    """

    array: Any
    _address: int

    def nbytes(self) -> int:
        """Return the size in bytes."""
        return storage.nbytes_of(self)

    __len__ = nbytes

    def data_ptr(self) -> int:
        """Return a stable number that no other living storage has; it is no address of memory."""
        if storage.nbytes_of(self) == 0:
            return 0
        if not self.__dict__.get("_address"):
            pages = _JaxStorage.nbytes(self) >> 20
            self._address = next(itertools.islice(_addresses, pages, None))
        return self._address

    def resize_(self, size: int) -> Any:
        """Set the size in bytes; new bytes at the end are zero."""
        storage.resize(self, size)
        return self

    def cpu(self) -> torch.UntypedStorage:
        """Return the bytes in host memory."""
        if (held := self.__dict__.get("host")) is not None:
            transfer.TRAFFIC.to_host(held.nbytes, 0.0)
            return held.clone().untyped_storage()
        return transfer.host_copy(storage.memory_in(self)).untyped_storage()

    def copy_(self, source: Any, non_blocking: bool = False) -> Any:
        """Take over the bytes of ``source``, a storage of the same size on any device."""
        if source.nbytes() != _JaxStorage.nbytes(self):
            raise RuntimeError(
                f"size does not match, self was {self.nbytes()} bytes but source was "
                f"{source.nbytes()} bytes"
            )
        if not (ours := storage.is_jax_storage(source)):
            source = torch.empty(0, dtype=torch.uint8, device="cpu").set_(source)
        storage.replace(self, storage.memory_in(source) if ours else transfer.array_of(source))
        return self

    def __getitem__(self, index: Any) -> Any:
        return _JaxStorage.cpu(self)[index]

    def _write_file(self, *args: Any) -> None:
        _JaxStorage.cpu(self)._write_file(*args)

    def is_shared(self) -> bool:
        """Return ``False``: other processes never see what is written here."""
        return False

    def share_memory_(self) -> Any:
        """Raise ``NotImplementedError``: a process that receives the tensor gets a copy."""
        raise NotImplementedError(
            f"share_memory_() of {_JaxStorage.nbytes(self)} bytes on device 'jax': its arrays are "
            "never written, so processes cannot share them, and each would train a copy of its "
            "own. Share the tensor or module on the CPU, before .to('jax'), and copy values to and "
            "from it; or send them through a queue of torch.multiprocessing, by value"
        )

    def _set_from_file(self, *args: Any) -> Any:
        host = torch.UntypedStorage(_JaxStorage.nbytes(self))
        host._set_from_file(*args)
        return _JaxStorage.copy_(self, host)


@around("torch.UntypedStorage.copy_", AT_FIRST_USE)
def _copy_to_host(original: Any, self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
    """C++ cannot copy from or to a storage of this device, in which it sees no bytes."""
    if storage.is_jax_storage(self):
        return _JaxStorage.copy_(self, src, *args, **kwargs)
    return original(self, src.cpu() if storage.is_jax_storage(src) else src, *args, **kwargs)


@around("torch.UntypedStorage._swap_data_ptr_", AT_FIRST_USE, since="torch 2.12")
def _swap_arrays(original: Any, self: Any, other: Any) -> None:
    """C++ swaps addresses, which storages of this device do not have."""
    both = isinstance(other, torch.UntypedStorage) and storage.is_jax_storage(other)
    if not (both and storage.is_jax_storage(self)):
        return original(self, other)  # which refuses any other pair with a jax storage
    sizes = self.nbytes(), other.nbytes()
    if sizes[0] != sizes[1] and 0 not in sizes:
        raise RuntimeError(
            "_swap_data_ptr_: storages must have the same nbytes or one must have 0, got "
            f"{sizes[0]} and {sizes[1]}"
        )
    addresses = other.data_ptr(), self.data_ptr()
    arrays = storage.memory_in(self), storage.memory_in(other)
    while not storage.put_back((self, other), arrays, arrays[::-1]):
        arrays = storage.memory_in(self), storage.memory_in(other)
    self._address, other._address = addresses
    return None


def _either(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (ours if storage.is_jax_storage(self) else theirs)(self, *args, **kwargs)

    return method


for _name, _ours in vars(_JaxStorage).items():
    if callable(_ours) and _name != "copy_":
        patch(
            f"torch.UntypedStorage.{_name}",
            AT_FIRST_USE,
            why="C++ sees no bytes in a storage of this device: they are in its ``jax.Array``.",
        )(functools.partial(_either, _ours))
