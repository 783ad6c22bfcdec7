"""The shape of the code: floors, file sizes, and what ``ops/`` may know."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import torch_jax

ROOT = Path(torch_jax.__file__).parent
FILES = {path.relative_to(ROOT): path for path in ROOT.rglob("*.py")}


def _name(relative: Path) -> str:
    parts = ("torch_jax", *relative.with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {_name(relative): path for relative, path in FILES.items()}


def imports(path: Path) -> set[str]:
    """Modules that a file imports when it is imported itself."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in inner}
    return found


def test_no_module_imports_one_that_imports_it():
    graph = {
        name: imports(path) & (MODULES.keys() - {"torch_jax"}) for name, path in MODULES.items()
    }
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError where there is one


def test_operators_know_jax_only():
    for name, path in MODULES.items():
        if name.startswith("torch_jax.ops"):
            own = {i for i in imports(path) if i.partition(".")[0] in ("torch", "torch_jax")}
            outside = {i for i in own if not i.startswith("torch_jax.ops")}
            assert outside <= {"torch_jax.config"}, (name, outside)


def test_files_are_short():
    for relative, path in FILES.items():
        assert len(path.read_text().splitlines()) <= 600, relative
