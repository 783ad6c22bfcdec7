"""The command line: ``python -m torch_jax``, one row of a table for each command.

A command is a module with ``add_arguments(parser)`` and ``answer(given)``, which returns the lines
that the command prints, or its exit status where it prints by itself. The module is imported when
its command is given.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A row: one command."""

    module: str  # below ``torch_jax``
    help: str
    refusals: tuple[type[Exception], ...] = ()  # errors that are printed without a traceback


COMMANDS = {
    "ops": Command("observe.operators_page", "operators, and how each is implemented", (KeyError,)),
    "plan": Command(
        "planning.plan",
        "a Llama's training step, compiled for chips elsewhere",
        (ValueError, RuntimeError),
    ),
    "run": Command("observe.running.command", "a script written for CUDA, on device jax"),
    "check": Command(
        "observe.checking.command",
        "a script's programs, compiled for chips that are elsewhere",
        (ValueError, RuntimeError),
    ),
    "profile": Command("observe.profiling.profile", "the time of a script, in parts"),
    "doctor": Command("doctor.page", "an examination of the installation"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    >>> main(["ops", "aten.relu_"])  # doctest: +ELLIPSIS
    aten.relu_(Tensor(a!) self) -> Tensor(a!)
      variant: derived by schema from a functional operator (in-place, out=, foreach)
      torch_jax/ops/activation.py:...
    <BLANKLINE>
    0
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser, module = _parser(arguments[0] if arguments else "")
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    try:
        answer = module.answer(given)
        if isinstance(answer, int):
            return answer
        for line in answer:
            print(line)
    except COMMANDS[given.command].refusals as error:
        print(error.args[0], file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head`
        sys.stderr.close()
    return 0


def _parser(name: str) -> tuple[argparse.ArgumentParser, Any]:
    """Return the parser, with all commands by name and the options of one; and its module."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_jax", description="JAX as a native device of PyTorch."
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    parsers = {one: commands.add_parser(one, help=row.help) for one, row in COMMANDS.items()}
    if name not in COMMANDS:
        return parser, None
    module = importlib.import_module(f"torch_jax.{COMMANDS[name].module}")
    module.add_arguments(parsers[name])
    return parser, module
