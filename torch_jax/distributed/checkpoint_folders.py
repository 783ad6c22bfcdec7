"""Folders of ``torch.distributed.checkpoint`` that are whole, even if a process is killed.

PyTorch writes the metadata of a checkpoint last, so that a folder with metadata is whole – unless
it is written a second time, since that goes into the same files. Here a checkpoint that replaces
another one gets files of other names, one rename of the metadata replaces the old by the new, and
then the old files are removed. The format is PyTorch's.

Bytes that have changed on the disk are not loaded: each entry of the metadata has the begin and the
end of a piece in its file, and here also their CRC-32, as an attribute that PyTorch ignores.
Entries without one are not checked.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from torch.distributed import checkpoint as dcp

from torch_jax._private import pytorch
from torch_jax.budgets import BYTES_READ_AT_ONCE

_SUM = "crc32"


def write_data(original: Callable[..., Any], writer: Any, plan: Any, planner: Any) -> Any:
    """Write files, under other names than those of an existing checkpoint.

    Files of a save that fails are removed: the disk may be full.
    """
    prefix = getattr(plan.storage_data, "prefix", None)
    if prefix is not None and pytorch.holds_checkpoint(writer):
        named = dataclasses.replace(plan.storage_data, prefix=f"{prefix}{uuid.uuid4().hex[:8]}_")
        plan = dataclasses.replace(plan, storage_data=named)
    if prefix is None or not isinstance(writer.path, Path):  # some other file system, by fsspec
        return original(writer, plan, planner)
    try:
        written = original(writer, plan, planner)
        sign(writer.path, [one.storage_data for one in written.wait()])
    except BaseException:
        _remove(writer.path.glob(f"{plan.storage_data.prefix}*.distcp"))
        raise
    return written


def finish(original: Callable[..., Any], writer: Any, metadata: Any, results: Any) -> None:
    """Replace the metadata of the folder by one rename, then remove files that it does not name."""
    if not isinstance(writer.path, Path):  # some other file system, by fsspec
        original(writer, metadata, results)
        return
    _sync(writer.path)
    new = {one.storage_data.relative_path for each in results for one in each}
    try:
        with _replacing(writer):
            original(writer, metadata, results)
    except BaseException:
        _remove([*(writer.path / name for name in new), *writer.path.glob("*.metadata.tmp")])
        raise
    _sync(writer.path)
    own = "__" if writer.use_collectives or writer.rank is None else f"__{writer.rank}_"
    _remove(path for path in writer.path.glob(f"{own}*.distcp") if path.name not in new)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # it does no harm
            path.unlink()


@contextlib.contextmanager
def _replacing(writer: Any) -> Iterator[None]:
    """Let a file take the place of another one, which PyTorch would remove before."""
    before, writer.fs = writer.fs, copy.copy(writer.fs)
    writer.fs.exists, writer.fs.rename = lambda path: False, os.replace
    try:
        yield
    finally:
        writer.fs = before


def _sync(folder: Path) -> None:
    """Write the names of files to the disk, where the system supports that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def last_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """Return the checkpoint of ``torch.distributed.checkpoint`` that was finished last.

    Looks at ``folder`` itself and at the folders in it. One whose saving was cut short does not
    count: it has no metadata, or files are missing, too short or damaged.

    Args:
      folder: the folder to which ``dcp.save(..., checkpoint_id=...)`` writes; it need not exist.

    Returns:
      The argument of ``dcp.load(..., checkpoint_id=...)``; None if there is no whole checkpoint.

    >>> last_checkpoint("/no/such/folder")
    """
    below = Path(folder)
    candidates = [below, *below.iterdir()] if below.is_dir() else []
    written = [one for one in candidates if (one / ".metadata").is_file()]
    finished = ((one / ".metadata").stat().st_mtime_ns for one in written)
    last_first = sorted(zip(finished, written, strict=True), reverse=True)
    return next((one for _, one in last_first if _is_whole(one)), None)


def _is_whole(folder: Path) -> bool:
    """Return whether a folder has metadata, and all files that it names."""
    try:
        metadata = dcp.FileSystemReader(folder).read_metadata()
    except Exception:  # no file, or not one of DCP's
        return False
    entries = list((metadata.storage_data or {}).values())
    files = {name: folder / name for name in {info.relative_path for info in entries}}
    sizes = {name: path.stat().st_size if path.is_file() else -1 for name, path in files.items()}
    whole = all(sizes[info.relative_path] >= info.offset + info.length for info in entries)
    return whole and all(_is_right(file, entry) for file, entry in _in_files(folder, entries))


# --- checksums ------------------------------------------------------------------------------------


def sign(folder: Path, entries: Iterable[Any]) -> None:
    """Give entries the checksums of the present bytes of the files."""
    for file, entry in _in_files(folder, entries):
        setattr(entry, _SUM, _sum(file, entry))


def check(file: IO[bytes], entry: Any) -> None:
    """Raise ``RuntimeError`` if the bytes of an entry are not those that were written."""
    if not _is_right(file, entry):
        raise RuntimeError(
            f"bytes {entry.offset} to {entry.offset + entry.length} of {entry.relative_path!r} are "
            "not those that were saved: their checksum differs. The file is damaged; "
            "torch_jax.last_checkpoint(folder) finds the last checkpoint that is whole"
        )


def _is_right(file: IO[bytes], entry: Any) -> bool:
    known = getattr(entry, _SUM, None)
    return known is None or known == _sum(file, entry)


def _in_files(folder: Path, entries: Iterable[Any]) -> Iterator[tuple[IO[bytes], Any]]:
    """Yield each entry with its file, in the order in which they are on the disk."""
    in_order = sorted(entries, key=attrgetter("relative_path", "offset"))
    for name, within in groupby(in_order, key=attrgetter("relative_path")):
        with open(folder / name, "rb") as file:
            for entry in within:
                yield file, entry


def _sum(file: IO[bytes], entry: Any) -> int:
    """Return the CRC-32 of an entry's bytes, read in small parts."""
    file.seek(entry.offset)
    left, value = entry.length, 0
    while left and (part := file.read(min(left, BYTES_READ_AT_ONCE))):
        value, left = zlib.crc32(part, value), left - len(part)
    return value
