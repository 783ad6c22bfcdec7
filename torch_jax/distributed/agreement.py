"""A check that the processes of a group ask for the same collective, before it runs.

JAX pairs the programs of processes by their order alone: a reduction that meets a broadcast would
give both processes numbers. So calls are numbered in each group, and a call is compared, through
JAX's coordinator, with those of the others if it follows its predecessor for the first time. In a
loop all pairs of calls are known, and a call costs one look into a set. A call that waits for long
is compared, too, since another process may have left the order.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_jax._private import jax_processes
from torch_jax.budgets import (
    ROWS_OF_AN_ERROR,
    SECONDS_BETWEEN_QUESTIONS,
    SECONDS_OF_A_FIRST_PAUSE,
    SECONDS_OF_A_PAUSE,
)
from torch_jax.core import tracers
from torch_jax.distributed import joining

_SAME = "same"

Asked = tuple[str, tuple, tuple]  # a name, its static arguments, dtypes and shapes


def _shown(asked: Asked) -> str:
    """Return a call as errors write it.

    >>> _shown(("broadcast", (1, 1), ((torch.float32, torch.Size([2, 3])),)))
    'broadcast(root 1, float32[2, 3])'
    """
    name, (*static, root), forms = asked
    words = [word for word in static if isinstance(word, str)]
    words += [] if root is None else [f"root {root}"]
    words += [f"{str(dtype).removeprefix('torch.')}{list(shape)}" for dtype, shape in forms]
    return f"{name}({', '.join(words)})"


class Order:
    """The collectives that one process asks a group for, in their order."""

    def __init__(self, name: str, called: str, rank: int, ranks: tuple[int, ...]) -> None:
        """Take a unique name of the group, its name in PyTorch, and a place among ``ranks``."""
        self.group = f"group {called!r} of ranks {list(ranks)}"
        self.ranks, self.own = ranks, ranks[rank]
        is_alone = len(ranks) == 1
        self.shared: Any = None if is_alone else jax_processes.Shared(name)
        self.places: Any = None if is_alone else jax_processes.Shared("places")
        self.lock = threading.Lock()
        self._is_always = dist.get_debug_level() == dist.DebugLevel.DETAIL
        self._numbers = itertools.count(1)
        self._last: Asked = ("", (None,), ())
        self._known: set[tuple[Asked, Asked]] = set()

    def next(self, name: str, static: tuple, tensors: Sequence[torch.Tensor], options: Any) -> Call:
        """Return the next call; report it unless it has followed the last one before."""
        forms = tuple([(tensor.dtype, tensor.shape) for tensor in tensors])
        asked = name, (*static, getattr(options, "rootRank", None)), forms
        pair = self._last, asked
        self._last = asked
        call = Call(self, next(self._numbers), asked)
        if pair not in self._known or self._is_always:
            self._known.add(pair)
            call.share()
        return call

    def refuse(self, why: str) -> None:
        """Report to the others that this process does not run the next call."""
        Call(self, next(self._numbers), self._last).end(f"rank {self.own} does not run it: {why}")

    def forget(self) -> None:
        """Compare all calls again: after one that differed, processes know other orders."""
        self._known.clear()


class Call:
    """A collective that one process asks for."""

    __slots__ = ("_asked", "_is_agreed", "_is_shown", "_line", "_number", "_order")

    def __init__(self, order: Order, number: int, asked: Asked) -> None:
        self._order, self._number, self._asked = order, number, asked
        self._line = ""
        self._is_agreed = self._is_shown = False

    def _key(self, of: str) -> str:
        return f"calls/{self._number}/{of}"

    def share(self) -> None:
        """Report this process's call to the others, and compare it with the first one's."""
        order, shared = self._order, self._order.shared
        with order.lock:
            if self._line or len(order.ranks) == 1:
                return
            self._line = tracers.user_line()
        own = [order.own, _shown(self._asked), self._line]
        first = json.loads(shared.first(self._key("first"), json.dumps(own)))
        if first[1] != own[1]:
            calls = sorted((first, own))
            shown = [f"rank {rank} calls {what} ({line})" for rank, what, line in calls]
            self.end(
                f"collectives do not match: {', but '.join(shown)}, as number {self._number} in "
                f"{order.group}. All processes of a group must call the same collectives in one "
                "order, with the same dtypes and shapes"
            )
        elif shared.add(self._key("came"), 1) == len(order.ranks):
            self.end(_SAME)

    def end(self, text: str) -> None:
        """Report the result of the comparison, unless another process has done so."""
        if self._order.shared is not None:
            self._order.shared.first(self._key("end"), text)

    def is_agreed(self) -> bool:
        """Return whether all processes are known to ask for the same collective, or raise."""
        order, shared = self._order, self._order.shared
        if not self._line:
            return False
        with order.lock:  # the thread that launches may ask, and one that waits
            if self._is_agreed or (end := shared.get(self._key("end"))) is None:
                return self._is_agreed
            if end != _SAME:
                self._hide()
                order.forget()
                raise dist.DistBackendError(end)
            self._is_agreed = True
            if shared.add(self._key("left"), 1) == len(order.ranks):
                shared.remove(*map(self._key, ("first", "came", "end", "left")))
            return True

    def wait(self, limit: timedelta) -> None:
        """Wait until all processes ask for the same, if this call is one that is compared."""
        if not self._line:
            return
        begun = time.monotonic()
        looked, pause = begun, SECONDS_OF_A_FIRST_PAUSE
        while not self.is_agreed():
            time.sleep(pause)
            now, pause = time.monotonic(), min(pause * 1.5, SECONDS_OF_A_PAUSE)
            if now - begun > limit.total_seconds():
                raise self.late(limit)
            if now - looked > SECONDS_BETWEEN_QUESTIONS:
                looked = now
                self.show()
                if set(joining.ended()).intersection(self._order.ranks):
                    raise RuntimeError("not all processes have come")
        self._hide()

    # --- calls that wait for long -----------------------------------------------------------------

    def show(self) -> None:
        """Report the call in which this process waits, if this has not been done."""
        self.share()
        if self._line and not self._is_shown:
            self._is_shown = True
            self._order.places.set(str(self._order.own), self._place())

    def _place(self) -> str:
        return f"{_shown(self._asked)} of {self._order.group}"

    def _hide(self) -> None:
        if self._is_shown:
            self._order.places.remove(str(self._order.own))
            self._is_shown = False

    def came_through(self) -> None:
        """Take back the reports of a call that has been run after all; raise if it met another."""
        self._hide()
        shared = self._order.shared
        if self._line and not self.is_agreed() and shared.add(self._key("came"), -1) == 0:
            shared.remove(self._key("first"), self._key("came"))

    def late(self, limit: timedelta) -> TimeoutError:
        """Return the error of a call that has waited too long, with the calls of the others.

        A process that comes later has an error at once.
        """
        text = f"no result within {limit.total_seconds():g} s"
        if not self._line:
            return TimeoutError(text)
        self.end(f"rank {self._order.own} has given up waiting for it ({text})")
        found = []
        for rank in self._order.ranks:
            place = self._order.places.get(str(rank)) or "no collective"
            if rank != self._order.own and place != self._place():
                found.append(f"rank {rank} waits in {place}")
        here = f"this is {self._place()} ({self._line})"
        return TimeoutError("; ".join([text, here, *found[:ROWS_OF_AN_ERROR]]))
