"""Pages of documentation: their code is run, and its output compared with that on the page."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import runpy
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import ROOT, forks

DOCS = ROOT / "docs"
GIVEN = ROOT / "tests" / "whole" / "given"  # what a page takes as given, such as ``model``
COMMAND = "python -m torch_jax "
_FENCE = re.compile(r"^( *)(```+)([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: the words after the fence, the content, and its first line in the page."""

    language: str
    content: str
    line: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in lists, too.

    >>> blocks("- so\\n\\n  ```sh\\n  ls\\n  ```\\n")
    [Block(language='sh', content='ls\\n', line=4)]
    """
    found = [
        Block(info.strip(), textwrap.dedent(content), page[: at.start(4)].count("\n") + 1)
        for at in _FENCE.finditer(page)
        for _, _, info, content in (at.groups(),)
    ]
    fences = re.findall(r"^ *```", page, re.MULTILINE)
    assert len(fences) == 2 * len(found), "a fence that is not closed, or closed otherwise"
    return found


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a page, or the code of a notebook but for what installs packages."""
    if path.suffix != ".ipynb":
        return blocks(path.read_text())
    return [
        Block("python", "".join(cell["source"]), number)
        for number, cell in enumerate(json.loads(path.read_text())["cells"], 1)
        if cell["cell_type"] == "code" and "install" not in cell["metadata"].get("tags", ())
    ]


def outputs(path: Path) -> list[str]:
    """What is printed before each ``text`` block of a page, all run in one new process.

    Only names that ``tests/whole/given`` has for the page are there before the first block.
    """
    return _processes().submit(_run, str(path)).result(timeout=300)


def given(path: Path) -> Path:
    """The file with what a page takes as given; most pages have none."""
    return GIVEN / f"{path.stem.replace('-', '_').lower()}.py"


def blanked(text: str) -> str:
    """Output without what changes from run to run, or with a line added somewhere."""
    text = re.sub(r"\d+\.\d\d ms", "0.00 ms", text)
    return re.sub(r"\.py:\d+", ".py:1", text).strip()


@functools.cache
def _processes() -> ProcessPoolExecutor:
    """A fork for each page."""
    return ProcessPoolExecutor(1, forks(), max_tasks_per_child=1)


def _run(path: str) -> list[str]:
    page = Path(path)
    names: dict[str, object] = {"__name__": "page"}
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with contextlib.redirect_stdout(printed):
            if given(page).exists():
                names |= runpy.run_path(str(given(page)))
            return list(_printed(blocks_of(page), names, printed))


def _printed(found: list[Block], names: dict[str, object], printed: io.StringIO) -> Iterator[str]:
    for block, following in zip(found, [*found[1:], None], strict=True):
        try:
            if block.language == "python":
                exec(compile(block.content, "page.py", "exec"), names)
            elif block.content.startswith(COMMAND) and following and following.language == "text":
                _command(block.content)
        except BaseException as error:
            raise AssertionError(f"the block at line {block.line}: {error!r}") from error
        if block.language == "text":
            yield printed.getvalue()
            printed.seek(0)
            printed.truncate()


def _command(command: str) -> None:
    """Run ``python -m torch_jax ...`` in this process, which must end well."""
    sys.argv = ["torch_jax", *shlex.split(command.removeprefix(COMMAND))]
    try:
        runpy.run_module("torch_jax", run_name="__main__")
    except SystemExit as end:
        assert not end.code, command
