"""A step of a library's training loop as one program, from its hooks at both ends of a step.

Operators between the hooks are recorded (lazy mode), so Python runs as usual: callbacks, loggers
and accumulated gradients mean the same, and numbers are those of eager mode. If a value is read
within the step, the operators before run at once, as a program of their own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch_jax.recorded import lazy


class Step:
    """The step under way: recorded from :meth:`begin` on, and run at :meth:`end`."""

    def __init__(self) -> None:
        """Begin with no step under way."""
        self._block: AbstractContextManager[None] | None = None

    def begin(self) -> None:
        """Record; a step that an exception has left open is run first."""
        self.end()
        self._block = lazy.lazy()
        self._block.__enter__()

    def end(self) -> None:
        """Run the recorded operators, if a step is under way."""
        if self._block is not None:
            block, self._block = self._block, None
            block.__exit__(None, None, None)
