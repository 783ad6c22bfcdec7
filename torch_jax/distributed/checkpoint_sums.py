"""Checksums in the metadata of a checkpoint: bytes that have changed on the disk are found.

Each entry of the metadata has the begin and the end of a piece in its file; here it also gets their
CRC-32, as an attribute that PyTorch ignores. Entries without one are not checked.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from torch_jax.budgets import BYTES_READ_AT_ONCE

_NAME = "crc32"


def sign(folder: Path, entries: Iterable[Any]) -> None:
    """Give entries the checksums of the present bytes of the files."""
    for name, within in _by_file(entries).items():
        with open(folder / name, "rb") as file:
            for entry in within:
                setattr(entry, _NAME, _sum(file, entry))


def are_right(folder: Path, entries: Iterable[Any]) -> bool:
    """Return whether files hold the bytes that were written, as far as that is known."""
    for name, within in _by_file(entries).items():
        with open(folder / name, "rb") as file:
            for entry in within:
                if getattr(entry, _NAME, None) not in (None, _sum(file, entry)):
                    return False
    return True


def _by_file(entries: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for entry in sorted(entries, key=lambda entry: entry.offset):
        found.setdefault(entry.relative_path, []).append(entry)
    return found


def _sum(file: IO[bytes], entry: Any) -> int:
    """Return the CRC-32 of an entry's bytes, read in small parts."""
    file.seek(entry.offset)
    left, value = entry.length, 0
    while left and (part := file.read(min(left, BYTES_READ_AT_ONCE))):
        value, left = zlib.crc32(part, value), left - len(part)
    return value
