"""``python -m torch_jax doctor``: the examination as text, for bug reports, or as JSON.

The exit status is 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator

from torch_jax.doctor import patched
from torch_jax.doctor.installation import Item

# Functions that examine, by the sections of the page. Each is imported only for its section: if one
# cannot be, for want of JAX, say, the others still report.
SECTIONS = {
    "versions": "installation.versions",
    "device": "running.device",
    "memory": "running.memory",
    "cache": "running.cache",
    "settings": "installation.settings",
    "environment": "installation.environment",
    "other bridges": "installation.bridges",
    "patches": "patched.patches",
    "self-test": "self_test.self_test",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Enter the options of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--patches", action="store_true", help="print all replacements and reasons")


def answer(given: argparse.Namespace) -> int:
    """Examine, print, and return 0 if there is no problem."""
    if given.patches:
        print("\n".join(patched.table()))
        return 0
    found = examine()
    if given.json:
        print(json.dumps({name: [i._asdict() for i in items] for name, items in found.items()}))
    else:
        print("\n".join(text(found)))
    return int(any(item.problem for items in found.values() for item in items))


def examine() -> dict[str, list[Item]]:
    """Return all sections; one that raises is an item with a problem."""
    return {name: list(_safely(function)) for name, function in SECTIONS.items()}


def _safely(function: str) -> Iterator[Item]:
    module, _, name = function.partition(".")
    try:
        yield from getattr(importlib.import_module(f"torch_jax.doctor.{module}"), name)()
    except Exception as error:  # the other sections still report
        yield Item("not examined", "", f"{type(error).__name__}: {error}")


def text(found: dict[str, list[Item]]) -> Iterator[str]:
    """Yield an examination as lines, with problems repeated at the end.

    >>> print(*text({"device": [Item("platform", "cpu")]}), sep="\\n")
    device
      platform  cpu
    <BLANKLINE>
    nothing is wrong
    """
    for name, items in found.items():
        yield name
        width = max((len(item.name) for item in items), default=0)
        for item in items:
            mark = "  <- wrong, see below" if item.problem else ""
            yield f"  {item.name:{width}}  {item.found}{mark}".rstrip()
        yield ""
    wrong = [(name, item) for name, items in found.items() for item in items if item.problem]
    if not wrong:
        yield "nothing is wrong"
    for name, item in wrong:
        yield f"WRONG: {name}, {item.name}: {item.problem}"
