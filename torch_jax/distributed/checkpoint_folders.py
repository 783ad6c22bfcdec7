"""Folders of ``torch.distributed.checkpoint`` that are whole, whenever a process is killed.

PyTorch writes the metadata of a checkpoint last, so that a folder with metadata is whole – unless
it is written a second time, for that goes into the same files. Here a checkpoint that is written
over another one takes files of other names, one rename of the metadata replaces the old by the new,
and then the old files are removed. The format is PyTorch's.

Nothing here uses JAX: PyTorch may save in a process of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.distributed import checkpoint as dcp

from torch_jax._private import checkpoints

_MARK = "_torch_jax_keeps_whole"


def mark(writer: Any) -> Any:
    """Have a writer keep folders whole wherever it is sent: PyTorch may save in another process."""
    setattr(writer, _MARK, True)
    return writer


def is_marked(writer: Any) -> bool:
    """Whether a process that has used the device has sent this writer."""
    return getattr(writer, _MARK, False)


def write_data(original: Callable[..., Any], writer: Any, plan: Any, planner: Any) -> Any:
    """Write files, under other names than those of a checkpoint that is there already."""
    prefix = getattr(plan.storage_data, "prefix", None)
    if prefix is not None and checkpoints.holds_checkpoint(writer):
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
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    sizes = {name: _size(folder / name) for name in ends}
    return all(sizes[name] >= end for name, end in ends.items())


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
