"""Which calls of a function run Python each time, because it is not proven that they need not.

Or because skipping it does not pay: a call that is traced again and again for the same reason costs
more than it saves.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Hashable

from torch_jax import config
from torch_jax.capture.keys import CallKey, alike

_TRACES = 5  # of one kind of call, for one kind of reason
_KEYS = 256  # how many calls that changed are remembered
_REASONS = 8  # how many kinds of call are unproven before all are


class Unproven:
    """The keys of calls that are not proven, and how often the others were traced in vain."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all of it."""
        self._reasons: OrderedDict[Hashable, str] = OrderedDict()
        self._alike: OrderedDict[Hashable, None] = OrderedDict()
        self._times: OrderedDict[Hashable, Counter[str]] = OrderedDict()
        self._misses = 0  # traces since a call last found one that fitted
        self._everything: str | None = None

    def __contains__(self, key: Hashable) -> bool:
        return self._everything is not None or key in self._reasons

    def has_alike(self, key: CallKey) -> bool:
        """Whether a call that differs in the values of numbers alone is known not to be proven."""
        return alike(key) in self._alike

    def add(self, key: CallKey, why: str) -> None:
        """Python runs at each call with this key, whatever its numbers are."""
        self._reasons[key] = why
        self._alike[alike(key)] = None
        if len(self._alike) > _KEYS:
            self._alike.popitem(last=False)
        if len(self._reasons) > _REASONS and len(set(self._reasons.values())) == 1:
            self._everything = why
            self._reasons.clear()
        elif len(self._reasons) > _KEYS:
            self._reasons.popitem(last=False)

    def hit(self) -> None:
        """A call found a trace that fitted."""
        self._misses = 0

    def miss(self, key: Hashable, reason: str | None) -> str | None:
        """A call is about to be traced: why Python had better run each time, if it had."""
        self._misses += 1
        if self._misses > max(config.get("jit_cache_size"), _TRACES):
            self._everything = f"{self._misses} traces in a row fitted no later call: {reason}"
            return self._everything
        times = self._times.setdefault(key, Counter())
        self._times.move_to_end(key)
        if len(self._times) > _KEYS:
            self._times.popitem(last=False)
        kind = _kind(reason)
        times[kind] += 1
        if times[kind] >= _TRACES and reason is not None:
            return f"it was traced {times[kind] - 1} times for the same reason: {reason}"
        return None


def _kind(reason: str | None) -> str:
    """A reason without the values in it.

    >>> _kind("config.scale was 2.5, now it is 3") == _kind("config.scale was 0, now it is 1")
    True
    """
    return re.split(r" (?:was|now|is) ", reason or "", maxsplit=1)[0]
