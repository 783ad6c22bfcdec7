"""The numbers that the package decides by are in one module, each with a comment, and in use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.imports import MODULES, tree_of

# Facts of PyTorch, JAX, files and mathematics, by module; of a module with none named all are such.
FACTS = {
    "_private.coordinator": "_FOR_EVER",
    "_private.jax_processes": "_FOR_EVER",
    "compiler.cache_files": "_DIGEST",
    "compiler.donation": "_ALONE",
    "device.trace.programs": "",
    "eager.checks": "_MAGNITUDES",
    "environment.cuda_answers": "CUDNN_VERSION NCCL_VERSION",
    "environment.redirects": "_BEFORE_CUDA",
    "exporting.exported_file": "_MOST_OF_HEADER",  # users copy it
    "exporting.symbolic.sizes": "_FINEST",
    "exporting.symbolic.views": "_FAR",
    "interop.function_state": "_IS_HEAP_TYPE",
    "memory.generators": "_MASK",
    "observe.checking.page": "_GB _GIB",
    "observe.running.script": "_INTERRUPTED",
    "ops.activation": "_TANH_CUBIC",
    "ops.creation": "_EXACT",
    "ops.distance": "_IF_LARGE _WITH_PRODUCT _LARGE",  # as PyTorch
    "ops.fft": "_AT_ONCE",
    "ops.gamma": "",
    "ops.special": "",
    "recorded.path": "",
    "startup.start": "",
    "target": "CUDNN",
}
BUDGETS = "torch_jax.budgets"


def numbers(name: str) -> Iterator[str]:
    """Yield the names in capitals that a module gives to numbers, or to tuples of such."""
    for node in tree_of(MODULES[name]).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _is_number(node.value):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            names = (one.id for one in ast.walk(target) if isinstance(one, ast.Name))
            yield from filter(str.isupper, names)


def _is_number(value: ast.expr) -> bool:
    """Return whether an expression is made of numbers and operators alone."""
    parts = [part for part in ast.walk(value) if isinstance(part, ast.expr)]
    found = [part.value for part in parts if isinstance(part, ast.Constant)]
    known = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple)
    is_plain = all(isinstance(part, known) for part in parts)
    return is_plain and bool(found) and {type(one) for one in found} <= {int, float}


def test_thresholds_stand_among_the_budgets():
    for name in MODULES.keys() - {BUDGETS}:
        facts = FACTS.get(name.removeprefix("torch_jax."))
        if facts != "":
            assert set(numbers(name)) == set((facts or "").split()), name


def test_each_budget_has_a_comment_and_a_use():
    text = MODULES[BUDGETS].read_text()
    told = re.findall(r"^# .*\n([A-Z_0-9]+) = ", text, re.MULTILINE)
    used = {
        alias.name
        for path in MODULES.values()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module == BUDGETS
        for alias in node.names
    }
    assert sorted(told) == sorted(used) == sorted(numbers(BUDGETS))
