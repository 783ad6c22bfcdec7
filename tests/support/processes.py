"""New processes of Python: each costs seconds, as it imports torch and JAX again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "scripts"


def environment(changes: dict[str, str | None]) -> dict[str, str]:
    """The environment of this process with these variables; None takes one away."""
    return {name: value for name, value in (os.environ | changes).items() if value is not None}


def run(
    *arguments: str, input: str | None = None, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, started at the root of the repository."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "cwd": ROOT}
    return subprocess.run(
        [sys.executable, *arguments], input=input, env=environment(variables), **options
    )


def output(*arguments: str, input: str | None = None, **variables: str | None) -> str:
    """What :func:`run` prints, of a process that must end well."""
    done = run(*arguments, input=input, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def script(name: str, *arguments: str, **variables: str | None) -> str:
    """What a program of ``tests/scripts`` prints; it must end well and complain of nothing."""
    done = run(str(SCRIPTS / f"{name}.py"), *arguments, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()
