"""``torch_xla.experimental``: operators at once, and compiled functions among them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_jax import config
from torch_jax.capture import jit
from torch_jax.compat.xla import world


def eager_mode(enable: bool) -> None:
    """Run operators at once, or record them until a step ends."""
    world.begin()
    config.set("mode", "eager" if enable else "lazy")


use_eager_mode = eager_mode


def is_eager_mode() -> bool:
    """Return whether operators run at once."""
    return config.get("mode") == "eager"


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Set :func:`eager_mode` in a block."""
    world.begin()
    with config.temporarily("mode", "eager" if enable else "lazy"):
        yield


compile = jit.jit
