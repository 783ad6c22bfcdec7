"""A step of a library's training loop as one program, from its hooks at both ends of a step.

Operators between the hooks are recorded (lazy mode), so Python runs as usual: callbacks, loggers
and accumulated gradients mean the same, and numbers are those of eager mode. If a value is read
within the step, the operators before run at once, as a program of their own.
"""

from __future__ import annotations

from contextlib import ExitStack

from torch_jax.recorded import lazy


class Step(ExitStack):
    """The step under way: recorded from :meth:`begin` on, and run when it is closed."""

    def begin(self) -> None:
        """Record; a step that an exception has left open is run first."""
        self.close()
        self.enter_context(lazy.lazy())
