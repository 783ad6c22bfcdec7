"""The shape of the tests: where their helpers are."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
OF_THEIR_OWN = (
    "calls",
    "conformance",
    "distributed",
    "patches",
    "programs",
    "startup",
    "upstream",
)  # folders with helpers that no other needs
FILES = sorted(path for path in TESTS.rglob("*.py") if "scripts" not in path.parts)


def helpers(path: Path) -> set[str]:
    """Modules of the tests that a file imports anywhere, functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (path, "imports by its own place, which changes")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.partition(".")[0] == "tests"}


def test_helpers_come_from_support_and_never_from_another_test_file():
    checked = 0
    for path in FILES:
        own = path.relative_to(TESTS).parts[0]
        allowed = ("tests.support", *([f"tests.{own}"] if own in OF_THEIR_OWN else []))
        for name in helpers(path):
            checked += 1
            assert name.startswith(allowed), (path, name)
            assert not any(part.startswith("test_") for part in name.split(".")), (path, name)
    assert checked > 100


def test_every_folder_is_a_package_so_that_files_may_share_a_name():
    folders = {path.parent for path in FILES if path.name.startswith("test_")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_scripts_are_all_run():
    text = "".join(path.read_text() for path in FILES)
    for path in (TESTS / "scripts").glob("*.py"):
        assert f'script("{path.stem}"' in text, path
