"""``torch.distributed.checkpoint``: a tensor over a mesh is written in its parts.

Such a tensor is a plain one, of which PyTorch would write all elements as one piece. Here each part
is a piece of its own, once even if several devices hold it. Reading is PyTorch's: it copies each
saved piece into the tensor, of any sharding, and such a copy goes to the parts that it meets
(:mod:`torch_jax.memory.parts`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from torch_jax.memory import parts, storage, transfer


def write_items(name: str, value: Any) -> list[WriteItem]:
    """Return the pieces to write for a sharded tensor, one for each part; none for other values."""
    if not isinstance(value, torch.Tensor) or storage.memory_if_any(value) is None:
        return []
    boxes, is_wide = parts.boxes(value), parts.is_wide(value)
    if is_wide and not torch.distributed.is_initialized():
        raise RuntimeError(
            f"{name!r} lies on devices of many processes, which save it together: call "
            'torch.distributed.init_process_group("gloo") in all of them first'
        )
    return [_item(name, value, *box) for box in boxes] if is_wide or len(boxes) > 1 else []


def _item(
    name: str, tensor: torch.Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    data = TensorWriteData(chunk, TensorProperties.create_from_tensor(tensor), tensor.size())
    return WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data)


def piece_of(value: Any, item: WriteItem) -> torch.Tensor | None:
    """Return the piece of a plain tensor that an item asks for; None where PyTorch finds it."""
    if not _is_ours(value, item) or item.tensor_data is None:
        return None
    piece, chunk = value, item.tensor_data.chunk
    for dimension, (start, length) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
        piece = piece.narrow(dimension, start, length)
    own = transfer.own_part(piece) if parts.is_wide(value) else None
    return piece if own is None else own


def _is_ours(value: Any, item: WriteItem) -> bool:
    """Return whether an item is one of :func:`write_items`, and none of PyTorch's own classes."""
    if item.type != WriteItemType.SHARD or not isinstance(value, torch.Tensor):
        return False
    return storage.memory_if_any(value) is not None


def in_one_piece(plan: Any, planner: Any) -> Any:
    """Return a plan that writes sharded tensors whole, for formats with each name once.

    Tensors that processes share (DTensor) stay in pieces, of which each process has its own.
    """
    items: dict[Any, WriteItem] = {}
    for item in plan.items:
        tensor: Any = getattr(planner, "state_dict", {}).get(item.index.fqn)
        if _is_ours(tensor, item):
            item = _item(item.index.fqn, tensor, (0,) * tensor.dim(), tuple(tensor.shape))
        items[item.index] = item
    return dataclasses.replace(plan, items=list(items.values()))
