"""``torch_xla.experimental``: operators at once, and compiled functions among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_jax import config
from torch_jax.capture import jit
from torch_jax.compat.xla import world

_MODES = {True: "eager", False: "lazy"}


def eager_mode(enable: bool) -> None:
    """Whether operators run at once, or are recorded until a step ends."""
    world.begin()
    config.set("mode", _MODES[bool(enable)])


use_eager_mode = eager_mode


def is_eager_mode() -> bool:
    """Whether operators run at once."""
    return config.get("mode") == "eager"


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """A block in which they do, or do not."""
    before = is_eager_mode()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)


def compile(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function as one program, which ``torch_jax.jit`` makes."""
    return jit.jit(func)
