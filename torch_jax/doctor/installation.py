"""The installation: versions, settings, variables of the environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch_jax
import torch_jax_autoload
from torch_jax import config

_LEAST = {"torch": (2, 11), "jax": (0, 10)}
_NEEDED = ("torch", "jax", "jaxlib", "numpy")
_LIBRARIES = (
    "transformers accelerate diffusers peft trl lightning timm safetensors flax optax "
    "orbax-checkpoint tensorboard"
).split()
_BRIDGES = ("torch_xla", "torchax")
_VARIABLES = re.compile(
    r"TORCH_JAX_|JAX_|XLA_|LIBTPU_|PJRT_|CUDA_VISIBLE|TF_CPP|NVIDIA_TF32|TORCHDYNAMO_|TORCH_DEVICE_"
)
# Variables under which the device behaves unexpectedly.
_CONFLICTS = {
    "JAX_DISABLE_JIT": "every operator runs uncompiled: unset it",
    "JAX_DEBUG_NANS": "NaN is an error here, which it is not in PyTorch",
    "TORCHDYNAMO_DISABLE": "torch.compile does nothing",
}


class Item(NamedTuple):
    """A line of an examination: a finding, and its problem; an empty text without one."""

    name: str
    found: str
    problem: str = ""


def versions() -> Iterator[Item]:
    """Yield Python, the libraries that are needed, and those that people use with them."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Item("python", f"{platform.python_version()} ({sys.executable}; {system})")
    place = Path(torch_jax.__file__).parent
    failure = torch_jax._failure
    problem = f"the device could not be registered: {failure}" if failure else ""
    yield Item("torch_jax", f"{torch_jax.__version__} ({place})", problem)
    found = {name: version_of(name) for name in (*_NEEDED, *_LIBRARIES)}
    for name in _NEEDED:
        yield Item(name, found[name] or "missing", _too_old(name, found[name]))
    jax, jaxlib = found["jax"], found["jaxlib"]
    if jax and jaxlib and _numbers(jax)[:2] != _numbers(jaxlib)[:2]:
        yield Item("jax and jaxlib", "differ", "install one release of both: pip install -U jax")
    yield from (Item(name, found[name]) for name in _LIBRARIES if found[name])


def version_of(name: str) -> str:
    """Return the release of an installed library, else nothing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _too_old(name: str, version: str) -> str:
    if not version:
        return f"pip install {name}"
    least = _LEAST.get(name, ())
    wanted = ".".join(map(str, least))
    return f"torch_jax needs {name} {wanted} or newer" if _numbers(version) < least else ""


def settings() -> Iterator[Item]:
    """Yield settings that are not the default, and variables that name none."""
    for name, setting in config.SETTINGS.items():
        try:
            value = config.get(name)
        except ValueError as error:
            yield Item(name, "?", str(error))
            continue
        if value != setting.default:
            yield Item(name, f"{value!r} (default {setting.default!r})")
    known = {f"TORCH_JAX_{name.upper()}" for name in config.SETTINGS}
    for name in sorted(os.environ):
        if name.startswith("TORCH_JAX_") and name not in known and "TEST" not in name:
            yield Item(name, os.environ[name], "no setting has that name: see docs/settings.md")


def environment() -> Iterator[Item]:
    """Yield variables that JAX, XLA and PyTorch read."""
    for name in sorted(filter(_VARIABLES.match, os.environ)):
        value = os.environ[name]
        problem = _CONFLICTS.get(name, "") if value.lower() not in ("", "0", "false") else ""
        if name == "TORCH_DEVICE_BACKEND_AUTOLOAD" and value == "0":
            problem = "`import torch` does not load torch_jax: programs must import it themselves"
        yield Item(name, value, problem)
    if (other := torch_jax_autoload.other_accelerator()) is not None:
        note = "programs name jax by `import torch_jax`, and then train on jax alone"
        yield Item("PyTorch's own accelerator", f"{other}: {note}")


def bridges() -> Iterator[Item]:
    """Yield other packages that join PyTorch and XLA, whose names this one carries over."""
    for name in _BRIDGES:
        if version := version_of(name):
            yield Item(name, f"{version}: `import {name}` is that package, not torch_jax's names")
