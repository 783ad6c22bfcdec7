"""The events of JAX for each program that it compiles, or loads from its cache."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable

_PROGRAM = "/jax/core/compile/backend_compile_duration"  # compiled, or loaded
_LOADED = "/jax/compilation_cache/cache_retrieval_time_sec"  # before the other, on its thread


def hear_of_programs(listener: Callable[[str, float, bool], None]) -> None:
    """Have ``listener`` called for each program, on the thread that needs it, from here on.

    Its arguments: the program's name, the seconds that it took, and whether it was loaded.
    """
    here = threading.local()

    def hear(event: str, seconds: float, **given: str | int) -> None:
        if event == _LOADED:
            here.has_loaded = True
        elif event == _PROGRAM:
            is_loaded, here.has_loaded = getattr(here, "has_loaded", False), False
            name = str(given.get("fun_name", ""))
            listener(name.removeprefix("jit(").removesuffix(")"), seconds, is_loaded)

    importlib.import_module("jax.monitoring").register_event_duration_secs_listener(hear)
