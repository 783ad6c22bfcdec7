"""``torch.distributed.checkpoint``: sharded tensors in parts, and folders that are always whole.

A tensor over a mesh is a plain tensor, of which PyTorch would write all elements as one piece. Here
each part becomes a piece of its own (:func:`write_items`). Reading needs nothing: PyTorch copies
each saved piece into the tensor, whatever its sharding, and such a copy goes to the parts
(:mod:`torch_jax.memory.parts`).

The files are PyTorch's own. What it lacks is in :func:`write_data` and :func:`finish`: a checkpoint
that is written over another one of its name takes files of other names, and one rename of the
metadata replaces the old by the new.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from torch_jax.memory import parts, storage

# --- parts of tensors -----------------------------------------------------------------------------


def write_items(name: str, value: Any) -> list[WriteItem]:
    """What is to be written of a sharded tensor, a piece for each part; nothing of other values."""
    if not isinstance(value, torch.Tensor) or storage.memory_if_any(value) is None:
        return []
    boxes = parts.boxes(value)
    return [_item(name, value, *box) for box in boxes] if len(boxes) > 1 else []


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
    return piece


def in_one_piece(plan: Any, planner: Any) -> Any:
    """A plan that writes sharded tensors whole, for a format whose files have a name once.

    Tensors that processes share (DTensor) stay in pieces, of which each process has its own.
    """
    items: dict[Any, WriteItem] = {}
    for item in plan.items:
        tensor = planner.state_dict.get(item.index.fqn) if hasattr(planner, "state_dict") else None
        if piece_of(tensor, item) is None:
            items[item.index] = item
            continue
        start, size = torch.Size([0] * tensor.dim()), tensor.size()
        chunk = ChunkStorageMetadata(start, size)
        data = dataclasses.replace(item.tensor_data, chunk=chunk)
        index = MetadataIndex(item.index.fqn, start)
        items[index] = dataclasses.replace(item, index=index, tensor_data=data)
    return dataclasses.replace(plan, items=list(items.values()))


# --- folders --------------------------------------------------------------------------------------


def write_data(original: Callable[..., Any], writer: Any, plan: Any, planner: Any) -> Any:
    """Write files, under other names than those of a checkpoint that is there already."""
    prefix = getattr(plan.storage_data, "prefix", None)
    if prefix is not None and writer._metadata_exists():
        named = dataclasses.replace(plan.storage_data, prefix=f"{prefix}{uuid.uuid4().hex[:8]}_")
        plan = dataclasses.replace(plan, storage_data=named)
    return original(writer, plan, planner)


def finish(original: Callable[..., Any], writer: Any, metadata: Any, results: Any) -> None:
    """Replace the metadata of the folder by one rename, then remove files that it does not name."""
    if not isinstance(writer.path, Path):  # some other file system, by fsspec
        original(writer, metadata, results)
        return
    _sync(writer.path)
    with _replacing(writer):
        original(writer, metadata, results)
    _sync(writer.path)
    own = "__" if writer.use_collectives or writer.rank is None else f"__{writer.rank}_"
    named = {info.relative_path for info in metadata.storage_data.values()}
    for path in writer.path.glob(f"{own}*.distcp"):
        if path.name not in named:
            with contextlib.suppress(OSError):  # it does no harm
                path.unlink()


class _Replacing:
    """A file system in which a file takes the place of another one, instead of being refused."""

    def __init__(self, files: Any):
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def exists(self, path: Any) -> bool:
        """False: PyTorch removes what is there before it renames, and might end in between."""
        return False

    def rename(self, path: Any, new_path: Any) -> None:
        """Rename, at once, whatever had the name before."""
        os.replace(path, new_path)


@contextlib.contextmanager
def _replacing(writer: Any) -> Iterator[None]:
    files, writer.fs = writer.fs, _Replacing(writer.fs)
    try:
        yield
    finally:
        writer.fs = files


def _sync(folder: Path) -> None:
    """Have the names of files on the disk, where the system knows of such a thing."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def last_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of ``torch.distributed.checkpoint`` that was finished last, for a new start.

    Looks at ``folder`` itself and at the folders in it. One whose saving was cut short has no
    metadata, or files are missing or too short: it does not count.

    Args:
      folder: where ``dcp.save(..., checkpoint_id=...)`` has written; it need not exist.

    Returns:
      What ``dcp.load(..., checkpoint_id=...)`` takes; None where there is no whole checkpoint.

    >>> last_checkpoint("/no/such/folder")
    """
    below = Path(folder)
    candidates = [below, *below.iterdir()] if below.is_dir() else []
    found = [(_finished(one), one) for one in candidates if _is_whole(one)]
    return max(found)[1] if found else None


def _finished(folder: Path) -> int:
    return (folder / ".metadata").stat().st_mtime_ns


def _is_whole(folder: Path) -> bool:
    """Whether a folder has metadata, and all that it names."""
    try:
        metadata = dcp.FileSystemReader(folder).read_metadata()
    except Exception:  # no file, or not one of DCP's
        return False
    ends: dict[str, int] = {}
    for info in (metadata.storage_data or {}).values():
        ends[info.relative_path] = max(
            ends.get(info.relative_path, 0), info.offset + info.length
        )
    sizes = {name: _size(folder / name) for name in ends}
    return all(sizes[name] >= end for name, end in ends.items())


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
