"""The mode of a call: pure, recorded, eager ...; by the code that it passes through."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from types import CodeType

from torch_jax.capture.jit import Jitted
from torch_jax.capture.replay import Replay
from torch_jax.graphs.executable import Executable
from torch_jax.recorded import lazy

CALLS, SECONDS = 3, 3.0  # at least, before a contender is timed

# A call that comes through this code of torch_jax runs in this mode; the first one counts.
_OF_JIT: dict[CodeType, str] = {
    Replay.__call__.__code__: "pure",
    Jitted.__call__.__code__: "recorded",
}
_OF_OTHERS: dict[CodeType, str] = {
    Executable.__call__.__code__: "graph",
    lazy.lazy.__code__: "lazy",
    lazy.fused.__code__: "fused",
}
# Otherwise it is eager if it comes through code of these folders: operators, and calls of JAX.
_EAGER = tuple(os.path.join("torch_jax", folder, "") for folder in ("eager", "interop"))


def mode(call: Callable[[], object]) -> str:
    """Call, and return the mode in which that ran; ``""`` where torch_jax had no part in it."""
    seen: set[CodeType] = set()
    sys.setprofile(lambda frame, event, argument: seen.add(frame.f_code))
    try:
        call()
    finally:
        sys.setprofile(None)
    for code, word in _OF_JIT.items() if Jitted.__call__.__code__ in seen else ():
        if code in seen:
            return word
    is_eager = any(folder in code.co_filename for code in seen for folder in _EAGER)
    others = (word for code, word in _OF_OTHERS.items() if code in seen)
    return next(others, "eager" if is_eager else "")


def usual_mode(call: Callable[[], object]) -> str:
    """Return the mode of most of three calls: of pure ones some are recorded, as an audit."""
    return statistics.mode(mode(call) for _ in range(3))


def settle(call: Callable[[], object], seconds: float = SECONDS) -> str:
    """Call until it runs as it will go on to, and return the mode.

    What torch_jax runs is called for longer: single operators are compiled, and compiled better,
    when they have worked enough.
    """
    for _ in range(CALLS):
        call()
    if not mode(call):
        return ""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()
    return usual_mode(call)


def after(before: str, call: Callable[[], object]) -> str:
    """Return the mode of a call that had settled; both modes where it is another one by now."""
    now = usual_mode(call) if before else ""
    return before if now == before else f"{before}, then {now}"
