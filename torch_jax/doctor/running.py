"""The running device: chips, memory, and the cache of compiled programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jax

from torch_jax import config
from torch_jax.compiler import disk_cache, trust
from torch_jax.compiler.cache_files import CacheFiles
from torch_jax.device import device_module
from torch_jax.device.memory_report import readable
from torch_jax.doctor.installation import Item


def device() -> Iterator[Item]:
    """Yield the platform, chips and processes of JAX."""
    properties = device_module.get_device_properties()
    chips, everywhere = jax.local_device_count(), jax.process_count()
    problem = ""
    if properties.platform == "cpu" and Path("/dev/nvidia0").exists():
        problem = "there is an NVIDIA GPU, and JAX does not use it: pip install 'jax[cuda13]'"
    yield Item("platform", properties.platform, problem)
    yield Item("chips", f"{chips} ({properties.name})")
    if everywhere > 1:
        yield Item("processes", f"{everywhere}, this one is {jax.process_index()}")


def memory() -> Iterator[Item]:
    """Yield the memory of the device; on the CPU that of the host."""
    free, total = device_module.mem_get_info()
    yield Item("total", readable(total))
    yield Item("free", readable(free))
    yield Item("in arrays", readable(device_module.memory_allocated()))


def cache() -> Iterator[Item]:
    """Yield the place and size of XLA's compiled programs on disk."""
    theirs = getattr(jax.config, "jax_compilation_cache_dir", None)
    path = disk_cache.directory()
    if not config.get("cache"):
        yield Item("on", "no (setting cache)")
        return
    if theirs not in (None, str(path)):
        yield Item("on", f"JAX's own, in {theirs}")
        return
    most = config.get("cache_megabytes") << 20
    sizes = [size for _, size, _ in CacheFiles(path, most).measured()]
    yield Item("directory", str(path), _objection(path))
    yield Item("files", f"{len(sizes)}, {readable(sum(sizes))} of at most {readable(most)}")


def _objection(path: Path) -> str:
    if not path.is_dir():
        return ""
    if not os.access(path, os.W_OK):
        return f"{path} cannot be written to, so that every process compiles again"
    return trust.objection(path) or ""
