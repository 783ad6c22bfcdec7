"""The tests that a change can break: ``python -m tests.support.affected`` writes the selection.

A test file depends on the modules that it imports or names, and on what these import. A change in
``torch_jax/x/y.py`` selects the test files that depend on that module, and ``tests/z`` for each
folder ``z`` whose modules import it. Quick tests run at each change, whatever is selected.

``.ci/landed`` names two commits: the last one that CI has passed, where the change begins, and the
last one at which all tests have run. A commit that is too old selects more tests, never fewer.
``--landed`` writes the file for the commit that is checked out, which CI must have passed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support import seeds
from tests.support.imports import MODULES, ROOT, TEST_MODULES, imports, name_of, reachable, tree_of
from tests.support.seeds import landed

COMMITS_BETWEEN_WHOLE_RUNS = 80
REACHES_ALL = (
    *(f"torch_jax/{name}/" for name in ("core", "memory", "eager", "compiler", "_private")),
    *(
        "torch_jax/config.py",
        "torch_jax/__init__.py",
        "tests/conftest.py",
        "tests/support/selected.py",
    ),
    *("Makefile", "pyproject.toml", "constraints.txt", ".ci/run"),
)
# What runs these folders' code without naming it.
BESIDE = {
    "dispatch": ("calls", "conformance", "dispatch"),
    "recorded": ("programs", "recorded"),
    "capture": ("programs", "capture"),
    "startup": ("startup", "patches"),
}
# What `import torch` loads stays out of the graph: every test would depend on nearly all modules.
LOADS_ALL = ("torch_jax", "torch_jax.startup")
LETTERS_OF_A_FAMILY = 4  # ops/embedding.py, calls/families/embeddings.py


class Selection(NamedTuple):
    """Hold what a change selects.

    Attributes:
      everything: all tests are selected, and the other fields are empty.
      tests: the files of tests whose slow tests run, as ``"tests/compat/test_names.py"``.
      modules: the files of the package whose doctests run.
      lowerings: the changed modules of ``ops``, whose operators conformance asks for in any third.
      families: the families of random calls that run; empty: all of them.
      why: the first reason, for people.
    """

    everything: bool = False
    tests: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    lowerings: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    why: str = ""


# --- the graph ------------------------------------------------------------------------------------


@cache
def edges() -> dict[str, frozenset[str]]:
    """Return what each module of the package and of the tests imports or names."""
    known = MODULES | TEST_MODULES
    return {name: frozenset(_named(name, path) & known.keys()) for name, path in known.items()}


def _named(name: str, path: Path) -> set[str]:
    if name.startswith("torch_jax"):
        if name in LOADS_ALL or name.startswith("torch_jax.startup."):
            return set()
        return {module for _, module, _ in imports(tree_of(path))} - {"torch_jax"}
    text = path.read_text()
    public = {
        f"torch_jax.{_public()[n]}"
        for n in re.findall(r"\btorch_jax\.(\w+)", text)
        if n in _public()
    }
    dotted = set(re.findall(r"\b(?:torch_jax|tests)(?:\.\w+)+", text))
    graphs = {"torch_jax.graphs.backend"} if 'backend="jax"' in text else set()
    return {module for _, module, _ in imports(tree_of(path))} | public | dotted | graphs


@cache
def _public() -> dict[str, str]:
    import torch_jax

    return torch_jax._LAZY


def folder_of(module: str) -> str:
    """Return the folder of a module of the package, or of the tests.

    >>> folder_of("torch_jax.core.active")
    'core'
    """
    return module.split(".")[1] if "." in module else ""


def dependents(changed: set[str]) -> set[str]:
    """Return the modules of the package and of the tests that depend on a changed one."""
    backwards: dict[str, set[str]] = {}
    for name, found in edges().items():
        for other in found:
            backwards.setdefault(other, set()).add(name)
    return reachable(changed, backwards)


# --- from files to tests --------------------------------------------------------------------------


def select(changed: Iterable[str]) -> Selection:
    """Return what a change of these files, as paths from the root, selects."""
    changed = sorted(changed)
    for path in changed:
        if path.startswith(REACHES_ALL):
            return Selection(everything=True, why=f"{path} reaches everything")
    modules = {name_of(ROOT / path) for path in changed if path.endswith(".py")} & edges().keys()
    own = {name for name in modules if name.startswith("torch_jax.")}
    operators = {name for name in own if folder_of(name) == "ops"}
    reached = dependents(modules - operators)
    tests = {name for name in reached if name.startswith("tests.")}
    folders = {folder_of(name) for name in reached if name.startswith("torch_jax.")}
    beside = {other for name in folders for other in BESIDE.get(name, (name,))}
    beside |= {path.split("/")[1] for path in changed if _shapes_a_folder_of_tests(path)}
    tests |= {name for name in TEST_MODULES if folder_of(name) in beside}
    tests |= {name for path in changed for name in _of_other_files(path)}
    lowerings = {name for name in dependents(operators) if folder_of(name) == "ops"}
    tests |= {name for name in TEST_MODULES if _is_of_operators(name, lowerings)}
    return Selection(
        tests=tuple(
            sorted(str(TEST_MODULES[name].relative_to(ROOT)) for name in tests if _is_test(name))
        ),
        modules=_files(name for name in {*reached, *lowerings} if name in MODULES),
        lowerings=tuple(sorted(lowerings)),
        families=_families(lowerings) if operators and "dispatch" not in folders else (),
        why=f"{len(changed)} files changed",
    )


def _files(modules: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(str(MODULES[name].relative_to(ROOT)) for name in modules))


def _is_test(name: str) -> bool:
    return name.rpartition(".")[2].startswith("test_")


def _shapes_a_folder_of_tests(path: str) -> bool:
    """Return whether a file belongs to a whole folder: a conftest, or what no import shows."""
    is_module = path.endswith(".py") and not path.endswith("conftest.py")
    return path.startswith("tests/") and path.count("/") > 1 and not is_module


def _of_other_files(path: str) -> set[str]:
    """Return the tests that name the folder, or the file, of what is no module of ours."""
    if path.startswith(("torch_jax/", "tests/")):
        return set()
    top = re.escape(path.split("/")[0])
    named = re.compile(rf"""["']{top}\b|\b(?:from|import) {top}\b""")  # no word of prose, no URL
    return {name for name, file in TEST_MODULES.items() if named.search(_code(file))}


@cache
def _code(path: Path) -> str:
    """Return the text of a test file without its first docstring, which may name anything."""
    return path.read_text().partition('"""\n')[2]


def _is_of_operators(test: str, lowerings: set[str]) -> bool:
    """Return whether a test module is about operators of changed files."""
    folder, file = folder_of(test), test.rpartition(".")[2]
    if not lowerings or folder not in ("ops", "calls", "conformance"):
        return False
    names = {name.rpartition(".")[2] for name in lowerings}
    return folder != "ops" or any(file.startswith(f"test_{name}") for name in names)


def _families(lowerings: set[str]) -> tuple[str, ...]:
    """Return the families of calls for changed files of operators; () means all."""
    known = [
        name.rpartition(".")[2] for name in TEST_MODULES if name.startswith("tests.calls.families.")
    ]
    found: set[str] = set()
    for name in lowerings:
        start = name.rpartition(".")[2][:LETTERS_OF_A_FAMILY]
        own = {family for family in known if family.startswith(start)}
        if not own:
            return ()
        found |= own
    return tuple(sorted(found))


# --- commits --------------------------------------------------------------------------------------


def git(*arguments: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def since_landed(base: str = "") -> Selection:
    """Return what the commits since the last one that CI passed select."""
    known = landed()
    try:
        age = int(git("rev-list", "--count", f"{known['whole']}..HEAD"))
        changed = git("diff", "--name-only", base or known["base"], "HEAD").splitlines()
    except subprocess.CalledProcessError as error:  # a shallow clone, or a rewritten history
        return Selection(everything=True, why=error.stderr.strip())
    if age > COMMITS_BETWEEN_WHOLE_RUNS:
        return Selection(everything=True, why=f"the last whole run is {age} commits old")
    return select(changed)


def note_landed() -> None:
    """Write ``.ci/landed`` for the commit that is checked out, which CI has passed."""
    head = git("rev-parse", "HEAD")
    whole = head if since_landed().everything else landed()["whole"]
    seeds.LANDED.write_text(f"base {head}\nwhole {whole}\n")


def main() -> None:
    """Print the selection for people, and write it as JSON where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--base", default=os.environ.get("CI_BASE", ""), help="where a change begins"
    )
    parser.add_argument("--write", type=Path, help="a file for the selection, as JSON")
    parser.add_argument("--landed", action="store_true", help="CI has passed the present commit")
    given = parser.parse_args()
    if given.landed:
        return note_landed()
    found = since_landed(given.base)
    if given.write:
        given.write.write_text(json.dumps(found._asdict()))
    print("all tests:" if found.everything else f"{len(found.tests)} files of tests:", found.why)
    print("", *found.tests, sep="\n  ")


if __name__ == "__main__":
    main()
