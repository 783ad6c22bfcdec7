"""The patches of PyTorch and other libraries, and the releases that still need them."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator

import torch_jax.patches
from torch_jax.core import patching, waking
from torch_jax.core.patching import PATCHES, Patch
from torch_jax.doctor.installation import Item, version_of

# The releases in which each row was proved to be needed: without it a test shows the fault.
PROVED_IN = {"torch": "2.13 2.14", "jax": "0.10", "safetensors": "0.8", "transformers": "5.24"}


def patches() -> Iterator[Item]:
    """Yield the number of patches in place, those that are not, and the releases that need them."""
    states = {target: state(row) for target, row in sorted(_rows().items())}
    in_place = sum(one == "in place" for one in states.values())
    waiting = sum(one.startswith("waits") for one in states.values())
    yield Item("in place", f"{in_place} of {len(states)} (--patches lists them)")
    yield Item("waiting", f"{waiting}, for modules that are not imported")
    for target, one in states.items():
        if one == "no target":
            yield Item(target, "this release has nothing of that name: the row does nothing")
    for library, version in installed().items():
        if is_proved(library, version):
            continue
        said = f"{version}: rows were proved to be needed in {PROVED_IN[library]}"
        yield Item(f"in {library}", f"{said}; `pytest tests/patches` proves it for this release")


def table() -> Iterator[str]:
    """Yield every row: its state, whether it was proved to be needed in this release, and why."""
    versions = installed()
    for target, row in sorted(_rows().items()):
        library = target.partition(".")[0]
        version = versions.get(library, "")
        needed = "needed" if is_proved(library, version) else f"not proved for {library} {version}"
        yield f"{target}\n  {state(row)}; {needed}; since {row.since}"
        yield f"  {' '.join(row.why.split())}"


def state(row: Patch) -> str:
    """Return the state of a row: ``in place``, ``waits for ...`` or ``no target``."""
    if row.target in patching.in_place():
        return "in place"
    if row.when == patching.AT_FIRST_USE and not waking.is_awake():
        return "waits for the first use of the device"
    if row.when not in (patching.AT_IMPORT, patching.AT_FIRST_USE) and row.when not in sys.modules:
        return f"waits for {row.when}"
    return "no target"


def installed() -> dict[str, str]:
    """Return the versions of the libraries that have patches."""
    return {name: found for name in PROVED_IN if (found := version_of(name))}


def is_proved(library: str, version: str) -> bool:
    """Return whether the rows of a library were proved to be needed in this release.

    >>> is_proved("torch", "2.13.1+cpu"), is_proved("torch", "2.15.0")
    (True, False)
    """
    proved = PROVED_IN.get(library, version).split()
    return any(f"{version}.".startswith(f"{release}.") for release in proved)


def _rows() -> dict[str, Patch]:
    """Return all rows, also of libraries that are not imported: all files of the table are."""
    for module in pkgutil.iter_modules(torch_jax.patches.__path__, "torch_jax.patches."):
        try:
            importlib.import_module(module.name)
        except ImportError:  # it is about a library that is not installed
            continue
    return PATCHES
