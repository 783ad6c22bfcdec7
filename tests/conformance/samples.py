"""PyTorch's operator database as cases: entries, dtypes, and sample inputs on either device.

The database is what PyTorch tests its own devices with
(``torch.testing._internal.common_methods_invocations.op_db``).
"""

from __future__ import annotations

import contextlib
import os
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance.report import COMMIT, WEEK
from tests.support.arguments import OnHost
from tests.support.seeds import in_third
from torch_jax import ops
from torch_jax.ops.registry import TABLE

DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
)

# At most so many samples of an entry and dtype, spread evenly over all of them (0: all).
LIMIT = int(os.environ.get("CONFORMANCE_SAMPLES", "0"))


# What an entry is asked for in any week, and how many other dtypes in turn.
ALWAYS = (torch.float32, torch.int64)
CHANGING = 1

# Modules of operators whose entries are asked whatever the number of the commit is.
CHANGED = tuple(os.environ.get("CONFORMANCE_MODULES", "").split())

# Entries whose tensor arguments but the first live on the CPU, whatever device the first is on.
_ON_HOST = ("tensor_split",)


def entries(commit: str = COMMIT, changed: tuple[str, ...] = CHANGED) -> list[Any]:
    """Return what a commit asks of ``op_db``: a third, and the entries of changed files."""
    mine = _packets(changed)
    return [e for e in op_db if is_asked(e.full_name, commit) or names_of(e) & mine]


def is_asked(name: str, commit: str = COMMIT) -> bool:
    """Return whether a commit asks for the entry of this name."""
    return not commit or in_third(name, int(commit))


def names_of(entry: Any) -> set[str]:
    """Return the names of ATen operators that an entry is of, without their overloads."""
    given = (
        entry.aten_name,
        entry.aten_backward_name,
        entry.name,
        *(a.name for a in entry.aliases),
    )
    return {name.rpartition(".")[2] for name in given if name}


def _packets(modules: tuple[str, ...]) -> set[str]:
    """Return the names of operators, without overloads, whose lowerings are in modules."""
    if not modules:
        return set()
    ops.load()
    found = (name for name, lowering in TABLE.items() if lowering.function.__module__ in modules)
    return {name.partition(".")[0].strip("_") for name in found}


def dtypes(entry: Any) -> list[torch.dtype]:
    """Those of :data:`DTYPES` that the CPU supports."""
    return [dtype for dtype in DTYPES if dtype in entry.supported_dtypes("cpu")]


def due(entry: Any, week: str = WEEK) -> list[torch.dtype]:
    """The dtypes that the entry is asked for in a week: all of them where ``week`` is empty."""
    supported = dtypes(entry)
    if not week:
        return supported
    others = [dtype for dtype in supported if dtype not in ALWAYS]
    first = (zlib.crc32(entry.full_name.encode()) + int(week)) * CHANGING
    chosen = {others[(first + step) % len(others)] for step in range(CHANGING) if others}
    return [dtype for dtype in supported if dtype in ALWAYS or dtype in chosen]


def in_turn(turn: int, week: str = WEEK) -> list[Any]:
    """One half of the entries in a week, the other in the next; all where ``week`` is empty.

    ``turn`` is 0 or 1: what has the other turn is asked of the other half.
    """
    if not week:
        return entries()
    return [e for e in entries() if (zlib.crc32(e.full_name.encode()) + int(week) + turn) % 2]


def dtype_name(dtype: torch.dtype) -> str:
    """``"float32"``."""
    return str(dtype).removeprefix("torch.")


def differentiable(entry: Any, dtype: torch.dtype) -> bool:
    """Whether the CPU takes gradients of this entry in this dtype."""
    return entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")


def samples(entry: Any, dtype: torch.dtype, everything: bool = False) -> list[Any]:
    """The entry's sample inputs on the CPU, the same at every call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(drawn(entry, dtype))
    return found if everything else spread(found, LIMIT)


def refusals(entry: Any) -> Iterator[tuple[torch.dtype, Any]]:
    """A sample of each dtype but floats that the CPU does not support, where there is one."""
    for dtype in DTYPES:
        if dtype.is_floating_point or dtype in entry.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        with contextlib.suppress(Exception):  # the database makes no such sample
            yield dtype, next(iter(entry.sample_inputs("cpu", dtype, requires_grad=False)))


def drawn(entry: Any, dtype: torch.dtype) -> Iterator[Any]:
    """All sample inputs one by one: there may be hundreds, of which not all are needed."""
    torch.manual_seed(0)
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=differentiable(entry, dtype)):
        if entry.full_name in _ON_HOST:
            sample.args = tuple(
                OnHost(a) if isinstance(a, torch.Tensor) else a for a in sample.args
            )
        yield sample


def spread(items: list[Any], limit: int) -> list[Any]:
    """``limit`` of the items from first to last, all of them where there are fewer or it is 0.

    Two are the first and the middle one, which are the first two of three: what a run asks is a
    part of what a longer run asks.
    """
    if not limit or len(items) <= limit:
        return items
    return [items[i * (len(items) - 1) // max(limit - 1, 2)] for i in range(limit)]
