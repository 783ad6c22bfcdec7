"""``torch.distributed.checkpoint``: a tensor over a mesh is written in its parts.

Such a tensor is a plain one, of which PyTorch would write all elements as one piece. Here each part
is a piece of its own, once however many devices hold it. Reading needs nothing: PyTorch copies each
saved piece into the tensor, whatever its sharding, and such a copy goes to the parts that it meets
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
    """What is to be written of a sharded tensor, a piece for each part; nothing of other values."""
    if not isinstance(value, torch.Tensor) or storage.memory_if_any(value) is None:
        return []
    boxes = parts.boxes(value)
    if not parts.is_wide(value):
        return [_item(name, value, *box) for box in boxes] if len(boxes) > 1 else []
    if not torch.distributed.is_initialized():
        raise RuntimeError(
            f"{name!r} lies on devices of many processes, which save it together: call "
            'torch.distributed.init_process_group("gloo") in all of them first'
        )
    return [_item(name, value, *box) for box in boxes]


def _item(
    name: str, tensor: torch.Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    properties = TensorProperties.create_from_tensor(tensor)
    data = TensorWriteData(chunk, properties, tensor.size())
    return WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data)


def piece_of(value: Any, item: WriteItem) -> torch.Tensor | None:
    """The piece of a plain tensor that an item asks for; None where PyTorch knows which."""
    if item.type != WriteItemType.SHARD or not isinstance(value, torch.Tensor):
        return None
    if storage.memory_if_any(value) is None or item.tensor_data is None:
        return None
    piece, chunk = value, item.tensor_data.chunk
    for dimension, (start, length) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
        piece = piece.narrow(dimension, start, length)
    own = transfer.own_part(piece) if parts.is_wide(value) else None
    return piece if own is None else own


def in_one_piece(plan: Any, planner: Any) -> Any:
    """A plan that writes sharded tensors whole, for a format whose files have a name once.

    Tensors that processes share (DTensor) stay in pieces, of which each process has its own.
    """
    items: dict[Any, WriteItem] = {}
    for item in plan.items:
        tensor: Any = getattr(planner, "state_dict", {}).get(item.index.fqn)
        if piece_of(tensor, item) is None:
            items[item.index] = item
            continue
        start, size = torch.Size([0] * tensor.dim()), tensor.size()
        chunk = ChunkStorageMetadata(start, size)
        data = dataclasses.replace(item.tensor_data, chunk=chunk)
        index = MetadataIndex(item.index.fqn, start)
        items[index] = dataclasses.replace(item, index=index, tensor_data=data)
    return dataclasses.replace(plan, items=list(items.values()))
