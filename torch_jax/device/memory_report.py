"""``torch_jax.memory_report``: the contents of the device's memory, by tensor and by module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import torch

from torch_jax.budgets import ROWS_OF_A_TABLE, ROWS_OF_AN_ERROR
from torch_jax.core import tracers
from torch_jax.memory import shared
from torch_jax.memory.storage import memory_if_any, tensors_in

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Row(NamedTuple):
    """Arrays that are alike, or those that a module holds."""

    what: str
    arrays: int
    bytes: int


class MemoryReport(NamedTuple):
    """The answer of :func:`memory_report`; ``print`` shows it as tables."""

    bytes: int  # of all arrays that are alive
    limit: int  # bytes of the device, 0 where JAX does not report it (the CPU)
    modules: tuple[Row, ...]  # parameters, buffers, gradients and optimizer state, largest first
    others: tuple[Row, ...]  # all other arrays by dtype and shape, largest first
    top: int = ROWS_OF_A_TABLE  # how many rows of each table ``print`` shows

    def __str__(self) -> str:
        arrays = sum(row.arrays for row in (*self.modules, *self.others))
        of = f" of {readable(self.limit)}" if self.limit else ""
        lines = [f"{readable(self.bytes)}{of} in {arrays} array{'s' * (arrays != 1)}"]
        for title, rows in (("module", self.modules), ("array", self.others)):
            lines += _table(title, rows, self.top) if rows else ()
        return "\n".join(lines)


def memory_report(
    module: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    top: int = ROWS_OF_A_TABLE,
) -> MemoryReport:
    """Return the contents of the device's memory at this moment.

    Shared arrays count once; those of JAX's own programs count too. Of an array over several
    devices the bytes are those of all of its parts.

    Args:
      module: its parameters, buffers and gradients are shown by the module that holds them.
      optimizer: its state is shown as one row.
      top: how many rows of a table ``print`` shows.

    >>> report = memory_report(torch.nn.Linear(2, 3, device="jax"))
    >>> report.modules
    (Row(what='Linear', arrays=2, bytes=36),)
    """
    alive = {id(array): array for array in _alive()}
    owned = _owned(module, optimizer)
    arrays = ((owner, alive.pop(id(memory_if_any(tensor)), None)) for owner, tensor in owned)
    modules = _rows((owner, array) for owner, array in arrays if array is not None)
    forms = ((tracers.shown(array).removeprefix("torch."), array) for array in alive.values())
    others = _rows(forms)
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    return MemoryReport(sum(r.bytes for r in (*modules, *others)), limit, modules, others, top)


def shortest() -> str:
    """Return the text that errors of no memory add: the largest arrays."""
    try:
        text = str(memory_report(top=ROWS_OF_AN_ERROR))
    except Exception:  # the error that this text explains must be raised
        return ""
    return f"\nIn memory (torch_jax.memory_report(model, optimizer) shows whose): {text}"


def _alive() -> Iterator[Any]:
    """Yield live arrays with memory: JAX also lists those whose allocation failed."""
    for array in jax.live_arrays():
        if not array.is_deleted() and not (array.is_ready() and _has_failed(array)):
            yield array
    yield from shared.held()


def _has_failed(array: Any) -> bool:
    try:
        array.block_until_ready()
        return False
    except RuntimeError:
        return True


def _owned(
    module: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors and the rows that they count in."""
    for name, child in module.named_modules() if module is not None else ():
        owner = name or type(child).__name__
        for tensor in (*child.parameters(recurse=False), *child.buffers(recurse=False)):
            yield owner, tensor
            if tensor.grad is not None:
                yield f"{owner} (gradients)", tensor.grad
    for tensor in tensors_in(optimizer.state if optimizer is not None else ()):
        yield f"{type(optimizer).__name__} (state)", tensor


def _rows(arrays: Iterable[tuple[str, Any]]) -> tuple[Row, ...]:
    found: dict[str, list[int]] = defaultdict(list)
    for what, array in arrays:
        found[what].append(array.nbytes)
    rows = (Row(what, len(sizes), sum(sizes)) for what, sizes in found.items())
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.what)))


def _table(title: str, rows: tuple[Row, ...], top: int) -> Iterator[str]:
    yield f"{'bytes':>12} {'arrays':>7}  {title}"
    for row in rows[:top]:
        yield f"{readable(row.bytes):>12} {row.arrays:>7}  {row.what}"
    if rest := rows[top:]:
        arrays, size = sum(row.arrays for row in rest), sum(row.bytes for row in rest)
        yield f"{readable(size):>12} {arrays:>7}  {len(rest)} more rows"


def readable(size: float) -> str:
    """Return bytes as people read them.

    >>> readable(36), readable(3 << 29)
    ('36 B', '1.5 GiB')
    """
    power = 0
    while size >= 1024 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{size} B"
