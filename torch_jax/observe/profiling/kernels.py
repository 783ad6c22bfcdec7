"""XLA's kernels added up: by kernel, by line of the user's, and the time of a busy device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch_jax.device.trace.events import Event

# Kernels that only move data, by XLA's names of them.
_MOVES = re.compile(r"^(wrapped_)?(copy|transpose|bitcast|concatenate|slice|pad|convert)")
_COMPUTES = re.compile(r"add|mul|div|sub|exp|log|tanh|reduce|dot|conv|max|min|select|compare|power")


class Kernels(NamedTuple):
    """Kernels that are reported as one, with their time and number."""

    name: str
    operator: str
    line: str
    seconds: float
    times: int


def added_up(events: Iterable[Event], of: Callable[[Event], Any]) -> list[Kernels]:
    """Return kernels that are alike by ``of`` as one, in order of their time, the longest first."""
    groups: dict[Any, list[Event]] = {}
    for event in events:
        groups.setdefault(of(event), []).append(event)
    found = [_group(group) for group in groups.values()]
    return sorted(found, key=lambda one: -one.seconds)


def _group(group: list[Event]) -> Kernels:
    first = group[0]
    operator, name = str(first.details.get("operator", "")), _plain(first)
    seconds = sum(event.end - event.begin for event in group) / 1e9
    return Kernels(name, operator, line_of(first), seconds, len(group))


def _plain(event: Event) -> str:
    return event.name.rpartition(": ")[2]


def line_of(event: Event) -> str:
    """Return the line of Python that a kernel comes from, or ''."""
    return str(event.details.get("python", ""))


def is_move(event: Event) -> bool:
    """Return whether a kernel computes nothing: a copy, or a change of layout.

    >>> from torch_jax.device.trace.events import Event
    >>> names = "copy", "transpose_copy_fusion", "copy_add_fusion", "dot"
    >>> [is_move(Event(name, "", 0, 1, None, True, False, "", {})) for name in names]
    [True, True, False, False]
    """
    name = _plain(event)
    return bool(_MOVES.match(name)) and not _COMPUTES.search(name)


def busy(events: Iterable[Event]) -> float:
    """Return the seconds in which any kernel ran: several at once count once.

    >>> from torch_jax.device.trace.events import Event
    >>> spans = (0, 2), (1, 3), (5, 6)
    >>> busy(Event("", "", int(a * 1e9), int(b * 1e9), None, True, False, "", {}) for a, b in spans)
    4.0
    """
    total, until = 0, 0
    for event in sorted(events, key=lambda event: event.begin):
        total += max(event.end - max(event.begin, until), 0)
        until = max(until, event.end)
    return total / 1e9
