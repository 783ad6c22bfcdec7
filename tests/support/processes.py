"""Other processes of Python: new ones, and forks of one that has imported torch and JAX already.

Both imports take five seconds of work. A new process is for what is about imports, and about
variables that are read there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterable, Iterator
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "scripts"
SECONDS = 300.0  # what a process may take
PRELOADED = ["torch", "torch._dynamo", "jax", "tests.support.frozen"]
Done = subprocess.CompletedProcess[str]


def environment(changes: dict[str, str | None]) -> dict[str, str]:
    """Return the environment of this process with these variables; None takes one away."""
    return {name: value for name, value in (os.environ | changes).items() if value is not None}


def run(*arguments: str, **variables: str | None) -> Done:
    """Run Python with these arguments in a new process, at the root of the repository.

    Where it, or a child that has its streams, takes too long, the error has their stacks.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment(variables | {"PYTHONFAULTHANDLER": "1"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        process_group=0,
    )
    with process:
        try:
            texts = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            state = process.poll()
            os.killpg(process.pid, signal.SIGABRT)  # faulthandler prints the stacks
            stacks = process.communicate(timeout=30)[1][-4000:]
            raise AssertionError(f"too long: {arguments[:3]} ({state}): {stacks}") from None
    return Done(process.args, process.returncode, *texts)


def forked(*arguments: str, **variables: str | None) -> Done:
    """Run Python as :func:`run` does, in a fork."""
    (done,) = forked_together([(arguments, variables)])
    return done


def output(*arguments: str, new: bool = False, **variables: str | None) -> str:
    """Return what Python prints in a fork, or in a new process; it must end well."""
    done = (run if new else forked)(*arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def script(name: str, *arguments: str, new: bool = False, **variables: str | None) -> str:
    """Return what a program of ``tests/scripts`` prints; it must end well and write no errors."""
    done = (run if new else forked)(str(SCRIPTS / f"{name}.py"), *arguments, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


# --- forks ----------------------------------------------------------------------------------------


@functools.cache
def forks() -> ForkServerContext:
    """Return where processes start as forks of one that has used neither torch nor JAX."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def settle(variables: dict[str, str], stdout: Path | str, stderr: Path | str) -> None:
    """In a fork, take these variables for the environment and write to these files."""
    for stream, file in ((1, stdout), (2, stderr)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(ROOT)


def forked_together(
    programs: Iterable[tuple[tuple[str, ...], dict[str, str | None]]], seconds: float = SECONDS
) -> list[Done]:
    """Run Python in forks at the same time, each with its arguments and variables."""
    end = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_started(*program)) for program in programs]
        return [_done(*each, end) for each in started]


@contextlib.contextmanager
def _started(
    arguments: tuple[str, ...], variables: dict[str, str | None]
) -> Iterator[tuple[BaseProcess, tuple[str, ...], list[Path]]]:
    """Start a fork, and kill it where nobody has waited for its end."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, stream) for stream in ("stdout", "stderr")]
        given = (arguments, environment(variables), files)
        process = forks().Process(target=_be_python, args=given)
        process.start()
        try:
            yield process, arguments, files
        finally:
            process.kill()


def _done(process: BaseProcess, arguments: tuple[str, ...], files: list[Path], end: float) -> Done:
    process.join(end - time.monotonic())
    said = [file.read_text() for file in files]
    assert process.exitcode is not None, (arguments, "took too long", *said)
    return subprocess.CompletedProcess(arguments, process.exitcode, *said)


def _be_python(arguments: tuple[str, ...], variables: dict[str, str], files: list[Path]) -> None:
    """Do what ``python *arguments`` does, and end as it ends."""
    settle(variables, *files)
    sys.path.insert(0, "")
    sys.modules["__main__"] = types.ModuleType("__main__")
    if arguments[0] == "-c":
        sys.argv, code = ["-c", *arguments[2:]], arguments[1]
    elif arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        code = f"import runpy; runpy._run_module_as_main({arguments[1]!r})"
    else:
        sys.argv, sys.path[0] = list(arguments), str(Path(arguments[0]).parent)
        code = f"import runpy; runpy.run_path({arguments[0]!r}, run_name='__main__')"
    failed = ctypes.pythonapi.PyRun_SimpleString(code.encode())  # which takes care of sys.exit
    ctypes.pythonapi.Py_Exit(1 if failed else 0)
