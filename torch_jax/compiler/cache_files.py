"""Entries of bytes in a directory: bounded in size, shared by many processes without locks.

An entry is written beside its place and moved there, so that a reader sees all of it or nothing. It
carries a checksum; a damaged one counts as missing. Errors of the file system are logged once, and
never raised; so is a directory that others may write to, which is not used.

>>> import tempfile
>>> files = CacheFiles(Path(tempfile.mkdtemp()), 1000)
>>> files.put("key", b"value")
>>> files.get("key"), files.get("another")
(b'value', None)
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from pathlib import Path

from torch_jax.compiler import trust
from torch_jax.core.log import LOGGER

_ENTRY, _PART = ".entry", ".part"  # whole entries, and those that are being written
_DIGEST = 16  # bytes


class CacheFiles:
    """A cache in a directory, with the methods that JAX asks of one."""

    def __init__(self, directory: Path, limit: int, mark: str = ""):
        self._path = directory  # made, for the user alone, when the first entry is written
        self._limit = limit  # the bytes that the entries may take
        # Another condition of an entry, besides its key. Entries without one, which another process
        # may have stored, are found, too.
        self._mark = mark
        self._unmeasured = limit  # bytes put since the directory was last measured
        self._writable = True
        self._trusted: bool | None = None  # not known before the directory exists

    def get(self, key: str) -> bytes | None:
        """Return the value of an entry, None where there is no whole one."""
        found = (self._read(key, mark) for mark in dict.fromkeys((self._mark, "")))
        return next((value for value in found if value is not None), None)

    def _read(self, key: str, mark: str) -> bytes | None:
        file = self._file(key, mark)
        try:
            if not self._is_trusted():
                return None
            sealed = file.read_bytes()
        except OSError:
            return None
        digest, value = sealed[:_DIGEST], sealed[_DIGEST:]
        if digest != self._digest(key, value):
            LOGGER.warning("%s is damaged, and made again", file)
            with suppress(OSError):
                file.unlink()
            return None
        with suppress(OSError):
            os.utime(file)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Store an entry, and drop old ones where there are too many."""
        if not self._writable or len(value) > self._limit:
            return
        file = self._file(key)
        part = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}{_PART}")
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_trusted():
                return
            part.write_bytes(self._digest(key, value) + value)
            part.replace(file)
        except OSError as error:
            self._writable = False
            LOGGER.warning("%s takes no more entries in this process: %s", self._path, error)
            with suppress(OSError):
                part.unlink()
            return
        self._unmeasured += len(value)
        if self._unmeasured > self._limit // 32:  # a measure at each write takes longer
            self._unmeasured = 0
            self._shrink()

    def _is_trusted(self) -> bool:
        """Return whether only the user can have put entries there; raise if it is missing."""
        if self._trusted is None:
            if (objection := trust.objection(self._path)) is not None:
                LOGGER.warning(
                    "%s is no place for compiled programs, which are executed: %s. Nothing is kept "
                    "on disk; torch_jax.config.set('cache_dir', ...) names another directory",
                    self._path,
                    objection,
                )
            self._trusted = objection is None
        return self._trusted

    def _file(self, key: str, mark: str | None = None) -> Path:
        mark = self._mark if mark is None else mark
        name = hashlib.blake2b(f"{mark} {key}".encode(), digest_size=_DIGEST).hexdigest()
        return self._path / f"{name}{_ENTRY}"

    @staticmethod
    def _digest(key: str, value: bytes) -> bytes:
        short = hashlib.blake2b(key.encode(), digest_size=_DIGEST).digest()
        return hashlib.blake2b(value, digest_size=_DIGEST, key=short).digest()

    def _shrink(self) -> None:
        """Drop the least recently used entries, where all take more than they may."""
        files = self.measured()
        excess = sum(size for _, size, _ in files) - self._limit
        if excess <= 0:
            return
        excess += self._limit // 8
        for _, size, path in sorted(files):
            with suppress(OSError):  # another process has deleted the file
                os.unlink(path)
            excess -= size
            if excess <= 0:
                break

    def measured(self) -> list[tuple[int, int, str]]:
        """Return time of use, size and path of every file that is ours."""
        found = []
        with suppress(OSError), os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith((_ENTRY, _PART)):
                    with suppress(OSError):
                        stat = entry.stat()
                        found.append((stat.st_mtime_ns, stat.st_size, entry.path))
        return found
