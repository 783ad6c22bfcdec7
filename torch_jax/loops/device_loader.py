"""``torch_jax.DeviceLoader``: batches are on the device before a training loop asks for them."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from torch_jax._private import pytorch
from torch_jax.budgets import SECONDS_FOR_A_BATCH
from torch_jax.core import waking
from torch_jax.core.active import ACTIVE
from torch_jax.memory import dtypes, processes, sharding, storage, transfer
from torch_jax.recorded import lazy

Move = Callable[[Any], Any]


class DeviceLoader:
    """Iterates over a ``DataLoader``, or anything, with the tensors of each batch on the device.

    Batches are loaded and moved ahead of time, on a thread of their own. In lazy mode, a step ends
    when the next batch is asked for: :func:`torch_jax.sync` is called there.

    Tensors are moved anywhere in a batch: in lists, tuples, named tuples, dicts and dataclasses.
    All other values are kept. The first batch is loaded by the thread that iterates, so that a
    sampler draws its seed there.

    Args:
      loader: an iterable of batches; each iteration iterates over it again.
      ahead: the most batches that wait on the device.
      mesh: of :func:`torch_jax.mesh`; tensors are laid over its devices.
      spec: as for :func:`torch_jax.shard`. Dimensions that a tensor does not have, or the
        mesh does not divide (of a last, smaller batch), are not split. After
        :func:`torch_jax.initialize`, each process passes its part of every batch, which the mesh
        must divide.

    >>> for x, name in DeviceLoader([(torch.ones(2), "a"), (torch.zeros(2), "b")]):
    ...     print(name, x.device.type, x.sum().item())
    a jax 2.0
    b jax 0.0
    """

    def __init__(self, loader: Iterable[Any], ahead: int = 2, mesh: Any = None, spec: Any = None):
        if ahead < 1:
            raise ValueError(f"ahead must be at least 1, not {ahead}")
        if (mesh is None) != (spec is None):
            raise ValueError("mesh and spec go together: DeviceLoader(..., mesh=m, spec=('data',))")
        self.loader, self.ahead = loader, ahead
        self._move = _to_device if mesh is None else sharder(mesh, spec)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        try:
            first = moved(next(batches), self._move)
        except StopIteration:
            return
        ahead = _Ahead(batches, self.ahead, self._move)
        del batches  # workers of a DataLoader end when its iterator is released
        try:
            yield first
            del first
            while True:
                if ACTIVE.recorder is not None:
                    lazy.sync()
                try:
                    batch = ahead.take()
                except StopIteration:
                    return
                yield batch
                del batch
        finally:
            ahead.close()


class _Error(NamedTuple):
    """The end of a loader: its error, ``StopIteration`` where it has no more batches."""

    raised: BaseException


class _Ahead:
    """Batches that a thread loads, and moves to the device, before they are asked for."""

    def __init__(self, batches: Iterator[Any], most: int, move: Move):
        self._move = move
        self._ready: SimpleQueue[Any] = SimpleQueue()
        self._room = threading.Semaphore(most)
        self._is_closed = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._load, batches), name="DeviceLoader", daemon=True
        )
        self._thread.start()

    def _load(self, batches: Iterator[Any]) -> None:
        lazy.follow("eager")
        try:
            while self._room.acquire() and not self._is_closed:
                self._ready.put(moved(next(batches), self._move))
        except BaseException as raised:  # the loop raises it
            del batches
            self._ready.put(_Error(raised))

    def take(self) -> Any:
        """Return the next batch, or raise the loader's error, ``StopIteration`` at the end."""
        batch = self._ready.get()
        if isinstance(batch, _Error):
            raise batch.raised
        self._room.release()
        return batch

    def close(self) -> None:
        self._is_closed = True
        self._room.release()
        self._thread.join(SECONDS_FOR_A_BATCH)


def _to_device(tensor: Any) -> Any:
    return tensor.to(pytorch.DEVICE_TYPE)


def sharder(mesh: Any, spec: Any) -> Move:
    """Return a function that lays a tensor over the devices of a mesh, split as far as possible."""
    waking.wake()
    sharding.fitting(mesh, spec, (0,) * len(sharding.spec_of(spec)))  # a wrong one raises here
    sharding.Use.begin(mesh)

    is_wide = processes.is_wide(sharding.fitting(mesh, (), ()))

    def move(tensor: Any) -> Any:
        if isinstance(tensor, PackedSequence):
            return _to_device(tensor)
        if is_wide:
            return _joined(tensor, mesh, spec)
        wanted = sharding.fitting(mesh, spec, tensor.shape)
        if tensor.device.type == "cpu":
            return transfer.to_device(tensor.detach(), wanted)
        array = sharding.as_wanted(transfer.value_of(_to_device(tensor)), wanted)
        return storage.wrap(array, tensor.dtype)

    return move


def _joined(tensor: torch.Tensor, mesh: Any, spec: Any) -> torch.Tensor:
    """Return a tensor over the devices of all processes, each of which has its part."""
    fitting = tuple(sharding.spec_of(spec))[: tensor.dim()]
    wanted = sharding.named(mesh, fitting, (0,) * tensor.dim())
    parts = len(wanted.spec)
    together = [
        length * processes.share(wanted, at) if at < parts else length
        for at, length in enumerate(tensor.shape)
    ]
    wanted = sharding.named(mesh, wanted.spec, together)
    host = dtypes.numpy_of(tensor.detach().cpu().contiguous())
    return storage.wrap(processes.joined(host, wanted), tensor.dtype)


def moved(batch: Any, move: Move = _to_device) -> Any:
    """Return a batch with its tensors on the device, anywhere in it.

    >>> moved({"x": [torch.ones(2)], "n": 3})["x"][0].device.type
    'jax'
    """
    return _moved(batch, move, {})


def _moved(value: Any, move: Move, known: dict[int, Any]) -> Any:
    """Return a value with its tensors moved; ``known`` has those moved before, by their ids."""
    if isinstance(value, torch.Tensor | PackedSequence):
        if id(value) not in known:
            known[id(value)] = move(value)
        return known[id(value)]
    if isinstance(value, str | bytes | type):
        return value
    if isinstance(value, list | tuple | deque | Mapping):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        return _rebuilt(value, {key: _moved(one, move, known) for key, one in pairs})
    if dataclasses.is_dataclass(value):
        other = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):  # which may be frozen, or computed
                one = _moved(getattr(value, field.name), move, known)
                object.__setattr__(other, field.name, one)
        return other
    return value


def _rebuilt(value: Any, items: dict[Any, Any]) -> Any:
    """Return a container of the same type with these items, by key or position."""
    if type(value) is dict:
        return items
    changed = {key: item for key, item in items.items() if item is not value[key]}
    if not changed and not isinstance(value, Mapping):
        return value
    if isinstance(value, tuple):
        return getattr(type(value), "_make", type(value))(items.values())  # of a named tuple
    other = copy.copy(value)  # type and attributes stay: a default factory, a tokenizer's encodings
    for key, item in changed.items():
        other[key] = item
    return other
