"""JAX's profiler, looked up tolerantly: one session a process, whose trace stays in memory."""

from __future__ import annotations

import importlib
from typing import Any

BUSY = (
    "jax.profiler traces already, and JAX traces once at a time in a process: end that trace "
    "(jax.profiler.stop_trace()) before torch.profiler begins"
)


def start() -> Any:
    """Begin a session; raise ``RuntimeError`` where another one is under way."""
    state = _state()
    with state.lock:
        if state.profile_session is not None:
            raise RuntimeError(BUSY)
        options = importlib.import_module("jax.profiler").ProfileOptions()
        options.python_tracer_level = 0  # PyTorch's profiler follows Python
        options.host_tracer_level = 2
        options.enable_hlo_proto = True
        session = importlib.import_module("jax._src.lib")._profiler.ProfilerSession(options)
        state.profile_session = session  # jax.profiler refuses to begin another one
    return session


def stop(session: Any) -> bytes:
    """End a session; return its trace, a serialized XSpace."""
    state = _state()
    with state.lock:
        if state.profile_session is session:
            state.reset()
    return session.stop()


def read(trace: bytes) -> Any:
    """Return a trace as planes of lines of events (``jax.profiler.ProfileData``)."""
    profiler: Any = importlib.import_module("jax.profiler")
    return profiler.ProfileData.from_serialized_xspace(trace)


def _state() -> Any:
    state = getattr(importlib.import_module("jax._src.profiler"), "_profile_state", None)
    if state is None or not hasattr(state, "profile_session"):
        raise RuntimeError("this release of JAX has no profiler that torch_jax knows")
    return state
