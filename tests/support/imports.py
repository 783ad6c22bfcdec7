"""The import graph of the package and of its tests, read from the source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torch_jax"
TESTS = ROOT / "tests"


def name_of(path: Path) -> str:
    """Return the dotted name of a module of the repository.

    >>> name_of(ROOT / "torch_jax" / "core" / "__init__.py")
    'torch_jax.core'
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TEST_MODULES = {name_of(path): path for path in sorted(TESTS.rglob("*.py"))}


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, str, bool]]:
    """Yield every import that is run: its node, the module, and whether a function does so."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((node, alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                known = full in MODULES or full in TEST_MODULES
                yield node, full if known else node.module, inside
        else:
            yield from imports(node, inside or isinstance(node, ast.FunctionDef | ast.Lambda))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def reachable(starts: Iterable[str], graph: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the nodes that a walk along the edges of a graph comes by, the first ones included.

    >>> sorted(reachable(["a"], {"a": ["b"], "b": ["a"], "c": ["a"]}))
    ['a', 'b']
    """
    found: set[str] = set()
    left = list(starts)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left.extend(graph.get(node, ()))
    return found
