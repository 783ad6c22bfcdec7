"""A scout: one recorded call that is watched before a function is traced.

A trace that comes upon something that is not understood has to be undone, and what nobody had noted
by then would stay. So the call before a trace runs as ever, and is watched without being changed:
where it met a doubt there is no trace, and nothing to undo. Where it met none, the trace knows from
its beginning which code will run and which names that reads, so that every place is noted with the
value that stood there before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch_jax._private import dynamo
from torch_jax.capture.state.bytecode import Names
from torch_jax.capture.state.walk import NOTHING, Reach, union
from torch_jax.capture.state.watch import Watch
from torch_jax.core.active import ACTIVE
from torch_jax.core.collection import no_collection


class Scouted:
    """The code that was seen to run in calls without a doubt, and the names it mentions."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self._names: set[Names] = set()
        self.reach: Reach = NOTHING  # of the user's code

    def add(self, codes: set[CodeType], names: set[Names]) -> None:
        """Another call was seen."""
        self.codes |= codes
        self._names |= names
        self.reach = functools.reduce(union, self._names, NOTHING)


def scout(call: Callable[[], Any], function: Any, leaves: list[Any], known: Scouted) -> Any:
    """Call, and learn from it; the result, the doubt that was met, if any, and whether it passes.

    An exception of the function's is raised on; then nothing is learnt.
    """
    watch = Watch(halts=False)
    before, ACTIVE.scout = ACTIVE.scout, watch
    try:
        with no_collection(), dynamo.dynamo_stance("force_eager"):  # as in the trace
            watch.start(function, leaves)
            try:
                result = call()
            finally:
                watch.stop()
    finally:
        ACTIVE.scout = before
    if watch.proof.doubt is None:
        watch.end_scout()
    if watch.proof.doubt is None:
        known.add(watch.ran.codes, watch.ran.users_names)
    return result, watch.proof.doubt, watch.proof.passes
