"""Compiled programs on disk, for the next process: JAX's persistent compilation cache.

It is on by default (settings ``cache``, ``cache_dir`` and ``cache_megabytes``), unless the user has
given JAX a directory himself (``JAX_COMPILATION_CACHE_DIR``, ``jax_compilation_cache_dir``): then
JAX's setting is kept, also where the user makes it after the device was first used.

All programs are stored, eager operators as well as whole steps: a load takes a fraction of the time
of compiling.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from torch_jax import config
from torch_jax._private import jax_core
from torch_jax.compiler.cache_files import CacheFiles

_DIRECTORY = "jax_compilation_cache_dir"
_LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"

_followed: tuple | None = None  # the settings in force
_installed: _Cache | None = None
_elsewhere: list[CacheFiles] | None = None  # of programs that are compiled for other chips
_seconds_before: float = 0.0


def install() -> None:
    """Follow the settings from here on; called once, when the device is first used."""
    for name in ("cache", "cache_dir", "cache_megabytes"):
        config.setters[name] = lambda _: follow()
    follow()


def follow() -> None:
    """Switch the cache on, off or over to another directory, as the settings say."""
    global _followed
    settings = config.get("cache"), config.get("cache_dir"), config.get("cache_megabytes")
    if settings == _followed:
        return
    _followed = settings
    if _installed is not None:
        _leave(_installed)
    is_users = _configured(_DIRECTORY) or not _configured("jax_enable_compilation_cache")
    if config.get("cache") and not is_users:
        _enter(_Cache(directory(), config.get("cache_megabytes") << 20, _machine()))


def directory() -> Path:
    """Return the directory of compiled programs: the setting ``cache_dir``, or the user's."""
    chosen = config.get("cache_dir")
    if chosen != "auto":
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~"), ".cache")
    return root / "torch_jax"


@contextmanager
def elsewhere(folder: Path | None) -> Iterator[None]:
    """Compile for chips that are elsewhere: nothing is loaded, and entries go to ``folder``.

    The machine of those chips finds them there, if the folder is its ``cache_dir``: JAX computes
    the same keys for the same chips, compiler and program. ``None`` keeps nothing.
    """
    global _elsewhere
    limit = config.get("cache_megabytes") << 20
    before, _elsewhere = _elsewhere, [CacheFiles(folder, limit)] if folder else []
    try:
        yield
    finally:
        _elsewhere = before


class _Cache(CacheFiles):
    """The files, as long as JAX is to use them."""

    def get(self, key: str) -> bytes | None:
        return super().get(key) if _elsewhere is None and self._is_wanted() else None

    def put(self, key: str, value: bytes) -> None:
        if _elsewhere is not None:
            for files in _elsewhere:
                files.put(key, value)
        elif self._is_wanted():
            super().put(key, value)

    def _is_wanted(self) -> bool:
        """Return whether JAX still has this directory, since the user may set another."""
        wanted = _configured(_DIRECTORY) == str(self._path)
        if not wanted and _installed is self:
            _leave(self)
        return wanted


def _configured(name: str) -> Any:
    return getattr(jax.config, name, None)


def _enter(cache: _Cache) -> None:
    global _installed, _seconds_before
    if not jax_core.set_compilation_cache(cache):
        return
    _installed, _seconds_before = cache, _configured(_LEAST_SECONDS)
    jax.config.update(_DIRECTORY, str(cache._path))
    jax.config.update(_LEAST_SECONDS, 0.0)


def _leave(cache: _Cache) -> None:
    """Restore the former setting of JAX's cache, unless the user has changed it since."""
    global _installed
    _installed = None
    if _configured(_DIRECTORY) == str(cache._path):
        jax.config.update(_DIRECTORY, None)
    if _configured(_LEAST_SECONDS) == 0.0:
        jax.config.update(_LEAST_SECONDS, _seconds_before)
    jax_core.set_compilation_cache(None)


@functools.cache
def _machine() -> str:
    """Return the machine's CPU, by its flags: machines may share a home directory."""
    try:
        with open("/proc/cpuinfo") as lines:
            flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()}"
