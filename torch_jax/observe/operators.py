"""Answers about operators: the rung of the ladder that serves each, and its function."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torch_jax._private import pytorch
from torch_jax.dispatch import ladder
from torch_jax.dispatch.storage_kernels import KERNELS
from torch_jax.eager import variants
from torch_jax.environment import overrides
from torch_jax.ops.registry import TABLE

RUNGS = {
    "override": "a function of the user's: torch_jax.register_op, default_env().override",
    "table": "a JAX function of the table, torch_jax/ops/",
    "kernel": "a kernel about storage and geometry, torch_jax/dispatch/storage_kernels.py",
    "variant": "derived by schema from a functional operator (in-place, out=, foreach)",
    "view": "PyTorch's own view: shares the storage, computes nothing",
    "composite": "PyTorch's own C++, which composes it of other operators",
    "decomposition": "PyTorch's own Python decomposition (torch._decomp)",
    "cpu": "runs on the CPU, with a warning",
    "none": "no kernel for strided tensors on any device like this one",
}


class Operator(NamedTuple):
    """One ATen overload: its name, its rung of the ladder, and the line of its lowering."""

    name: str
    rung: str
    where: str

    @property
    def family(self) -> str:
        """Return the file of ``torch_jax/ops`` that has the lowering, or ''."""
        return Path(self.where.partition(":")[0]).stem if "/ops/" in self.where else ""


def describe(op: Any) -> Operator:
    """Return the answer for one overload.

    >>> describe(torch.ops.aten.relu.default).rung
    'table'
    """
    if (override := overrides.chosen(op)) is not None:
        return Operator(str(op), "override", place(override.function))
    rung = ladder.rung(op)  # which wakes the table
    functional = variants.functional_of(op) if op._schema.is_mutable else None
    names = [variants.table_name(one) for one in (op, functional) if one is not None]
    lowering = next((TABLE[name] for name in names if name in TABLE), None)
    if lowering is None and (kernel := ladder.kernel_in_table(op)) is not None:
        lowering = kernel.lowering
    function = KERNELS.get(names[0]) or (lowering and lowering.function)
    return Operator(str(op), rung, place(function))


def operators() -> list[Operator]:
    """Return every ATen overload that the installed PyTorch has."""
    names = (name for name in pytorch.all_op_names() if name.startswith("aten::"))
    found = filter(None, (variants.overload(name.removeprefix("aten::")) for name in names))
    return [describe(op) for op in sorted(found, key=str)]


def find(name: str) -> list[Any]:
    """Return the overloads meant by ``aten.dropout``, ``dropout`` or ``add.Tensor``.

    Raises:
      KeyError: there is no such overload.

    >>> [str(op) for op in find("aten.relu")]
    ['aten.relu.default', 'aten.relu.out']
    """
    if not (found := variants.named(name)):
        plain = name.removeprefix("torch.ops.").removeprefix("aten.").removeprefix("aten::")
        raise KeyError(f"torch {torch.__version__} has no operator aten.{plain}")
    return found


def place(function: Any) -> str:
    """Return ``file:line`` of a function, or ''."""
    if (code := getattr(function and inspect.unwrap(function), "__code__", None)) is None:
        return ""
    root = Path(__file__).parent.parent.parent
    path = Path(code.co_filename)
    return f"{path.relative_to(root) if root in path.parents else path}:{code.co_firstlineno}"
