"""The proof that a function's Python may be skipped: what stands against it, found while it runs.

Python runs at each call unless every instruction that ran, every call and every value that the
code can reach is understood: read from a guarded place, of a known exact type, without effects but
those that calls repeat. Whatever is not on the lists (:mod:`~torch_jax.capture.state.opcodes`,
:mod:`~torch_jax.capture.state.known_calls`, :mod:`~torch_jax.capture.state.known_types`) is a
doubt, and one doubt is enough.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch_jax.capture.state import identities, known_calls
from torch_jax.capture.state.bytecode import names_of, watched_names
from torch_jax.capture.state.opcodes import ONE_OBJECT, doubt_of
from torch_jax.core import tracers


class Proof:
    """The doubts about one run; the first is the one that is told."""

    def __init__(self, is_own: Callable[[Any], bool]):
        """``is_own`` tells which tensors the run made itself, by whatever operator or view."""
        self.doubt: str | None = None
        self.passes = False  # whether the next run will not meet the doubt
        self.hooks: str | None = None  # where a hook was put on a tensor of the run, if any was
        self._is_own = is_own

    def add(self, why: str, line: str | None = None) -> None:
        """Something is not understood; ``line`` is where, if it is not the line that runs."""
        if self.doubt is None:
            self.doubt = f"{why} ({line or tracers.user_line()})"

    # --- while the function runs ------------------------------------------------------------------

    def enter(self, frame: Any) -> None:
        """Code that is watched begins to run."""
        code = frame.f_code
        if is_users(code):
            doubt = doubt_of(code)
            if doubt is not None:
                self.add(doubt.why, doubt.line)
            if not identities.are_fixed(frame):
                self.add(f"it {ONE_OBJECT}")
            if names_of(code).everything:
                self.add("it uses attributes whose names are computed")

    def enter_library(self, frame: Any) -> None:
        """Code of a library begins to run."""
        code, caller = frame.f_code, frame.f_back
        if caller is None or not is_users(caller.f_code) or is_generated(caller):
            return
        if code.co_name == "register_hook" and self._is_own(frame.f_locals.get("self")):
            self.hooks = tracers.user_line()
            return
        code = known_calls.called_by_logger(code, frame.f_locals)
        if not known_calls.is_known_code(code):
            self.add(f"it calls {code.co_qualname} of {_module_of(frame)}, which is not understood")

    def enter_builtin(self, caller: Any, function: Any) -> None:
        """A function of C is about to be called, from the frame ``caller``."""
        code = caller.f_code
        if code.co_filename == "<string>" and code.co_name == "__hash__":
            return  # what a dataclass makes; of its fields, which are plain or understood
        if (
            is_users(code)
            and not is_generated(caller)
            and not known_calls.is_known_builtin(function)
        ):
            own = known_calls.is_for_own_tensors(function)
            if not (own and self._is_own(getattr(function, "__self__", None))):
                self.add(f"it calls {_name_of(function)}, which is not understood")


@functools.cache
def is_users(code: CodeType) -> bool:
    """Whether code is watched, and of no library whose code is known as what it is."""
    is_known = known_calls.is_known_code(code)
    return watched_names(code) is not None and not is_known


def _module_of(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", frame.f_code.co_filename))


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", repr(function))
    module = getattr(function, "__module__", None)
    return name if module in (None, "builtins") else f"{module}.{name}"


def is_generated(frame: Any) -> bool:
    """Whether the code is that of a named tuple or of a library's dataclass."""
    if frame.f_code.co_filename != "<string>":
        return False
    module = frame.f_globals.get("__name__", "")
    library = ("namedtuple_", "torch.", "jax.", "torch_jax.")
    return module.startswith(library) or module.partition(".")[0] in sys.stdlib_module_names
