"""A step of a library's training loop as one program: what its hooks at both ends of a step do.

What runs between the hooks is recorded (lazy mode), so Python runs as ever: callbacks, loggers and
accumulated gradients mean what they mean without it, and numbers are those of eager mode. A value
that is looked at within the step has what came before run at once, as a program of its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch_jax.recorded import lazy


class Step:
    """The step under way: recorded from :meth:`begin` on, and run at :meth:`end`."""

    def __init__(self) -> None:
        """No step is under way."""
        self._block: AbstractContextManager[None] | None = None

    def begin(self) -> None:
        """Record; one that an exception has left open is run first."""
        self.end()
        self._block = lazy.lazy()
        self._block.__enter__()

    def end(self) -> None:
        """Run what was recorded, if a step is under way."""
        if self._block is not None:
            block, self._block = self._block, None
            block.__exit__(None, None, None)
