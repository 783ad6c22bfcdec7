"""Pages of documentation whose code is run, and whose outputs are held against what it prints."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys

from tests.support.processes import ROOT, output

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page: language and content."""
    return _BLOCK.findall(page)


def outputs(page: str) -> list[str]:
    """What each block before a ``text`` block prints, all of them run in one new process."""
    return json.loads(output("-m", "tests.support.pages", input=page))


def blanked(text: str) -> str:
    """Output without what changes from run to run, or with a line added somewhere."""
    text = re.sub(r"\d+\.\d\d ms", "0.00 ms", text)
    return re.sub(r"\.py:\d+", ".py:1", text).strip()


def _run(page: str) -> list[str]:
    names: dict[str, object] = {}
    printed, found = "", []
    for language, content in blocks(page):
        if language == "text":
            found.append(printed)
            printed = ""
            continue
        file = io.StringIO()
        with contextlib.redirect_stdout(file):
            if language == "python":
                exec(compile(content, "page.py", "exec"), names)
            else:
                from torch_jax.observe import cli

                _, _, _, *arguments = shlex.split(content)  # python -m torch_jax ...
                assert cli.main(arguments) == 0
        printed += file.getvalue()
    return found


if __name__ == "__main__":
    print(json.dumps(_run(sys.stdin.read())))
