"""``python -m torch_jax check script.py --target tpu-v5e-4x4``: its memory and time there."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torch_jax import config, target
from torch_jax.observe.checking import page
from torch_jax.observe.running import command as running
from torch_jax.observe.running import script
from torch_jax.recorded.elsewhere import compile_for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command, which may be given before the script or after it."""
    _add_own(parser)
    script.add_arguments(parser)


def _add_own(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", help=f"the chips: {target.NAMES} …")
    add("--steps", type=int, default=2, help="steps of an optimizer to run (%(default)s)")
    add("--json", metavar="FILE.json", help="write the page as JSON, too")
    add("--keep", metavar="FOLDER", help="keep all programs of jitted functions for those chips")
    running.add_device(parser)


def answer(given: argparse.Namespace) -> int:
    """Run the script without computing, compile its programs, and print a page.

    Return 0 if all programs compile and fit, else 1, or the status of a script that failed.
    """
    rest = given.module or given.script
    if given.target is None and rest:  # the command's options may come after the script
        own = argparse.ArgumentParser(add_help=False)
        _add_own(own)
        _, rest[1:] = own.parse_known_args(rest[1:], given)
    if not (program := script.named(given)):
        return 2
    if not given.target:
        print(f"--target names the chips: {target.NAMES}", file=sys.stderr)
        return 2
    jax.config.update("jax_platforms", "cpu")  # compilers need no chip, and one may be in use
    if given.keep:
        config.set("cache", True)
    running.redirect(given.device)
    with compile_for(given.target) as found:
        status = _run(program, given, found)
        if status and not found.programs:
            return status
        report = page.checked(found, program[0], given.keep and Path(given.keep).absolute())
    for line in page.lines(report):
        print(line)
    if given.json:
        Path(given.json).write_text(json.dumps(report, indent=1))
    return status or (0 if report["fits"] else 1)


class _Enough(BaseException):
    """The script has run its steps."""


def _run(program: list[str], given: argparse.Namespace, found: Any) -> int:
    """Run the script until an optimizer begins one step more than ``--steps``."""
    begun: Counter[int] = Counter()

    def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        begun[id(optimizer)] += 1
        if begun[id(optimizer)] > given.steps:
            found.is_over = True
            raise _Enough

    hook = register_optimizer_step_pre_hook(before_step)
    try:
        return script.run(program, given.module is not None, ends_by=_Enough)
    finally:
        hook.remove()
