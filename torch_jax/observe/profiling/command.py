"""``python -m torch_jax profile script.py``: the time of a script, in Python and on the device."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from torch_jax.observe.profiling.profile import Profile, Profiling
from torch_jax.observe.running import script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; arguments after the script's name are the script's."""
    parser.add_argument("--report", metavar="FILE.json", help="write the profile as JSON, too")
    script.add_arguments(parser)


def answer(given: argparse.Namespace) -> int:
    """Run the script, and print the profile on stderr; returns the script's exit status."""
    program = script.named(given)
    if not program:
        return 2
    with Profiling() as profiling:
        status = script.run(program[0], program[1:], is_module=given.module is not None)
    found = profiling.profile(program[0], 1, is_script=True)
    if given.report:
        Path(given.report).write_text(json.dumps(_plain(found), indent=1))
    sys.stdout.flush()
    print(found, file=sys.stderr)
    return status


def _plain(found: Profile) -> dict:
    """Return the profile as JSON."""
    lines = [
        {"file": file, "line": line, "function": function, "looks": looks}
        for (file, line, function), looks in found.python_lines.items()
    ]
    kernels = {name: [one._asdict() for one in vars(found)[name]] for name in ("kernels", "lines")}
    return vars(found) | {"python_lines": lines} | kernels
