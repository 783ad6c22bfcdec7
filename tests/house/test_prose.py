"""The English of docstrings and comments: a reader of any country reads it once and knows."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PHRASES = (
    r"h[au]ng(s|ing)?\s+on",
    r"st(ands?|ood)(?!-)",
    r"t(ells?|old)",
    r"anew",
    r"whoever",
    r"(no|some)body",
    r"for\s+good",
    r"dear",
    r"lest",
    r"as\s+ever",
)  # say: depends on, is stored, is reported, again, the caller
BANNED = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)
FIRST_WORDS = {"What", "Whether", "How", "Where", "Which", "Who"}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def faults(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and words of each banned phrase and each docstring that names a question."""
    text = path.read_text()
    is_suspect = BANNED.search(text) is not None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and (words := (ast.get_docstring(node) or "").split()):
            if words[0].strip(",.:").capitalize() in FIRST_WORDS:
                yield node.body[0].lineno, f"{words[0]} …: begin with a verb, or name the thing"
        match node:
            case ast.Expr(value=ast.Constant(value=str(prose))) if is_suspect:
                yield from _banned(prose, node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if is_suspect else ():
        if token.type == tokenize.COMMENT:
            yield from _banned(token.string, token.start[0])


def _banned(prose: str, line: int) -> Iterator[tuple[int, str]]:
    for found in BANNED.finditer(prose):
        yield line + prose.count("\n", 0, found.start()), found[0]


def test_docstrings_and_comments_are_plain():
    files = sorted((ROOT / "torch_jax").rglob("*.py"))
    assert len(files) > 300
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in files
        for line, words in faults(path)
    ]
    assert not found, "\n".join(found)


def test_faults_are_found_with_their_lines(tmp_path):
    file = tmp_path / "some.py"
    file.write_text('def f():\n    """Whether so.\n\n    It hangs\n    on.\n    """  # anew\n')
    assert [line for line, _ in faults(file)] == [2, 4, 6]
