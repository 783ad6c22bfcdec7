"""Handlers of signals go through the switch of :mod:`torch_jax.core.signals`."""

from __future__ import annotations

from typing import Any

from torch_jax.core import signals
from torch_jax.core.patching import AT_FIRST_USE, around


@around("signal.signal", AT_FIRST_USE)
def _through_switch(original: Any, signalnum: Any, handler: Any) -> Any:
    """A handler that raises (Ctrl-C) would end the process if C++ is asking the device's guard."""
    return signals.plain(original(signalnum, signals.through_switch(signalnum, handler)))


@around("signal.getsignal", AT_FIRST_USE)
def _as_it_was_given(original: Any, signalnum: Any) -> Any:
    """Handlers are wrapped, but asyncio compares ``getsignal`` with the handler that it gave."""
    return signals.plain(original(signalnum))
