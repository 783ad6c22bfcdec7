"""Answers about operators: the rung of the ladder that serves each, and the operators it runs."""

from __future__ import annotations

import inspect
import itertools
import warnings
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
    override = overrides.chosen(op)
    if override is not None:
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
    found = variants.named(name)
    if not found:
        plain = name.removeprefix("torch.ops.").removeprefix("aten.").removeprefix("aten::")
        raise KeyError(f"torch {torch.__version__} has no operator aten.{plain}")
    return found


def place(function: Any) -> str:
    """Return ``file:line`` of a function, or ''."""
    code = getattr(function and inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    root = Path(__file__).parent.parent.parent
    path = Path(code.co_filename)
    return f"{path.relative_to(root) if root in path.parents else path}:{code.co_firstlineno}"


_SHAPES = ((4, 4), (2, 3, 8, 8), (2, 4, 8), (2, 2, 4, 4, 4), (4, 4, 4, 4), (4,), ())
_SIZES = ([2, 2], [1, 1], [4], [2], [4, 4], [1, 1, 1], [8, 8], [0])
_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
_INDEX_NAMES = ("index", "indices", "target", "lengths", "offsets")


def example(op: Any, training: bool) -> tuple[Any, ...] | None:
    """Return positional arguments on the CPU for an operator, or None if none were found."""
    for dtype, shape, size in itertools.product(_DTYPES, _SHAPES, _SIZES):
        try:
            args = tuple(
                _argument(a, shape, size, dtype, training)
                for a in op._schema.arguments
                if not a.kwarg_only
            )
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                op(*args)
        except Exception:  # the operator's own refusal: try the next
            continue
        return args
    return None


def _argument(argument: Any, shape: tuple, size: list[int], dtype: Any, training: bool) -> Any:
    kind = str(argument.real_type)
    if argument.name in ("train", "training"):
        return training
    if argument.has_default_value():
        return argument.default_value
    if kind.startswith("Optional"):
        return None
    if "Tensor" in kind:
        tensor = torch.ones(shape, dtype=dtype)
        if argument.name in _INDEX_NAMES:
            tensor = torch.zeros(shape[:1], dtype=torch.int64)
        return [tensor, tensor] if kind.startswith("List") else tensor
    if argument.name == "dim" and kind == "int":
        return 0
    values = {"int": 1, "SymInt": 1, "float": 0.5, "number": 2, "bool": False, "str": "none"}
    return size if kind.startswith("List") else values.get(kind)
