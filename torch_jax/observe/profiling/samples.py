"""Python's work, found by looking at its stack a thousand times a second.

A thread looks at the stack of another one and finds its part of the work: a row of a table, by the
files of its frames. Such looks disturb the program little, and see work that no hook reports, as
C++ that is called from a line of Python.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any

import jax
import torch

from torch_jax import config
from torch_jax.budgets import SECONDS_BETWEEN_SAMPLES
from torch_jax.observe.running.costs import line_of

_TORCH_JAX, _TORCH, _JAX = (
    os.path.dirname(str(one.__file__)) + os.sep for one in (config, torch, jax)
)

# Parts of the work, by a piece of the path of a frame, below its library.
_TABLE = (
    ("looking at values", _TORCH_JAX, ("memory/transfer.py",)),
    ("compiling", _JAX, ("_src/compiler.py", "_src/compilation_cache.py")),
    ("compiling", _TORCH_JAX, ("compiler/disk_cache.py", "compiler/cache_files.py")),
    ("tracing", _JAX, ("_src/interpreters/", "_src/pjit.py", "_src/linear_util.py")),
    ("tracing", _TORCH_JAX, ("graphs/backend.py",)),
    ("tracing", _TORCH, ("_dynamo/", "_functorch/")),
    ("guards of jit", _TORCH_JAX, ("capture/guards.py", "capture/arguments.py", "capture/keys.py")),
    ("launching", _TORCH_JAX, ("memory/lending.py",)),
    ("recording", _TORCH_JAX, ("recorded/recorder.py", "recorded/path.py", "recorded/program.py")),
    ("results of jit", _TORCH_JAX, ("capture/replay.py",)),
    ("operators, eager", _TORCH_JAX, ("eager/", "dispatch/", "memory/")),
)
# The first row that fits any frame decides, so that a compilation is one for every caller.
_PARTS = [(part, tuple(library + piece for piece in pieces)) for part, library, pieces in _TABLE]
_OTHERS = ((_TORCH_JAX, "torch_jax, other"), (_JAX, "JAX"), (_TORCH, "PyTorch"))


def part_of(files: list[str]) -> str:
    """Return the part of the work for a stack, by the files of its frames, innermost first.

    >>> part_of(["/home/me/train.py"])
    'Python, yours'
    """
    for part, below in _PARTS:
        if any(file.startswith(below) for file in files):
            return part
    for library, part in _OTHERS:
        if files and files[0].startswith(library):
            return part
    return "Python, yours"


class Sampler:
    """Looks at one thread while it is open."""

    def __init__(self, thread: int):
        """Take ``thread``, the identifier of the thread to look at."""
        self.parts: Counter[str] = Counter()  # how many looks found each part of the work
        self.lines: Counter[tuple[str, int, str]] = Counter()  # file, line, function
        self.seconds = 0.0  # how long it looked
        self._of, self._ends = thread, threading.Event()
        self._thread = threading.Thread(target=self._look, name="torch_jax profiles", daemon=True)

    def __enter__(self) -> Sampler:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(SECONDS_BETWEEN_SAMPLES / 4)
        self._start = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ends.set()
        self._thread.join()
        self.seconds = time.perf_counter() - self._start
        sys.setswitchinterval(self._interval)

    def _look(self) -> None:
        while not self._ends.wait(SECONDS_BETWEEN_SAMPLES):
            if (frame := sys._current_frames().get(self._of)) is not None:
                files = [at.f_code.co_filename for at, _ in traceback.walk_stack(frame)]
                self.parts[part_of(files)] += 1
                if (line := line_of(frame)) is not None:
                    self.lines[line] += 1
            del frame
