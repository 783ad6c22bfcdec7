"""A script or a module run as ``python`` runs it, by a program that continues afterwards.

``__main__``, ``sys.argv``, ``sys.path``, exit status and tracebacks are those of ``python``.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import io
import os
import runpy
import sys
import threading
import types
from typing import Any

_INTERRUPTED = 130  # a shell's status for a program that Ctrl-C has ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the program: a file, or ``-m`` and a module; all later arguments are the program's."""
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="a file, and its arguments")


def named(given: argparse.Namespace) -> list[str]:
    """Return the program and its arguments; empty, with a message, if none is named or found."""
    program: list[str] = given.module or given.script
    if not program:
        print("give a script, or -m and a module", file=sys.stderr)
    elif not given.module and not os.path.exists(program[0]):
        print(f"can't open file {os.path.abspath(program[0])!r}: no such file", file=sys.stderr)
        return []
    return program


def run(program: list[str], is_module: bool, ends_by: type[BaseException] | tuple = ()) -> int:
    """Run a file, a folder with a ``__main__.py``, or a module; returns the exit status.

    An error is printed as Python prints it, except ``ends_by``, which ends the script well. Threads
    that are no daemons are waited for.
    """
    sys.argv[:], target = program, program[0]
    status, before = 0, set(threading.enumerate())
    try:
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        elif os.path.isfile(target) and not target.endswith((".zip", ".pyz", ".whl")):
            _run_file(target)
        else:
            runpy.run_path(target, run_name="__main__")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)
    except ends_by:
        return 0
    except BaseException as error:
        error.__traceback__ = _own(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        status = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    for thread in set(threading.enumerate()) - before:  # as at Python's end: their work counts, too
        if not thread.daemon:
            thread.join()
    return status


def _run_file(path: str) -> None:
    """Run a file in a module of its own, which stays ``__main__``: pickles name it to the end."""
    if not sys.flags.safe_path:  # modules beside the script, not where this program was started
        sys.path[:1] = [os.path.dirname(os.path.realpath(path))]
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path,
        __builtins__=__builtins__,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    with io.open_code(os.path.abspath(path)) as file:
        source = file.read()
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _own(trace: Any) -> types.TracebackType | None:
    """Return a traceback without the frames that ran the script."""
    ours = (__file__, "<frozen runpy>", runpy.__file__)
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace
