"""The floors of the house: the contract, the folders, and the page agree; nothing is circular.

``lint-imports`` (``make lint``) holds the imports against the contract of ``pyproject.toml``.
"""

from __future__ import annotations

import ast
import re
import tomllib
from graphlib import TopologicalSorter

from tests.support.imports import MODULES, PACKAGE, ROOT, imports, tree_of

CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
# These are loaded where nobody may need them (by `import torch`, by Dynamo when it lists backends,
# by `python -m torch_jax --help`, by `import lightning`): they import JAX, and what stands on it,
# when they are used.
QUICK = (
    "startup patches device core.waking memory.generators graphs.backend integrations.adapt"
).split()


def floors() -> list[list[str]]:
    """The folders of each floor, from the top, by the contract."""
    (layers,) = (
        c["layers"] for c in CONTRACT["contracts"] if "containers" not in c and "layers" in c
    )
    return [[name.strip().removeprefix("torch_jax.") for name in row.split("|")] for row in layers]


GRAPH = {name: list(imports(tree_of(path))) for name, path in MODULES.items()}


def test_every_folder_has_a_floor():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert {name for row in floors() for name in row} == folders | {"budgets", "config", "target"}
    assert files <= {"__init__", "__main__", "_version", "budgets", "config", "optim", "target"}


def test_the_page_shows_the_floors_of_the_contract():
    page = (ROOT / "docs" / "internals.md").read_text()
    table = page.split("<!-- floors -->")[1].splitlines()
    rows = [re.findall(r"`([\w/]+)`", row.split("|")[1]) for row in table if row.startswith("| `")]
    assert rows == floors()


def test_no_module_imports_one_that_imports_it():
    graph = {
        name: {to for _, to, _ in found if to in MODULES and to != "torch_jax"}
        for name, found in GRAPH.items()
    }
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError where there is one


HANDING_OUT = ("torch_jax", "torch_jax.ops", "torch_jax.compat")  # whose names users import


def test_folders_hold_a_docstring_only():
    for name, path in MODULES.items():
        if path.name == "__init__.py" and name not in HANDING_OUT:
            body = ast.parse(path.read_text()).body
            assert len(body) == 1 and "May import" in (ast.get_docstring(ast.Module(body)) or "")


def test_functions_import_only_where_loading_must_be_quick():
    allowed = tuple(f"torch_jax.{name}" for name in QUICK)
    found = {
        f"{name}:{node.lineno} imports {to}"
        for name, edges in GRAPH.items()
        for node, to, inside in edges
        if inside
        and to.startswith(("torch_jax", "jax"))
        and not name.startswith(allowed)
        and name != "torch_jax"
    }
    assert not found, "\n".join(sorted(found))


def test_operators_know_jax_only():
    for name, edges in GRAPH.items():
        if name.startswith("torch_jax.ops"):
            own = {to for _, to, _ in edges if to.partition(".")[0] in ("torch", "torch_jax")}
            outside = {to for to in own if not to.startswith("torch_jax.ops")}
            below = {"torch_jax.budgets", "torch_jax.config", "torch_jax.target"}
            assert outside <= below, (name, outside)


def test_files_are_short():
    for name, path in MODULES.items():
        assert len(path.read_text().splitlines()) <= 600, name
