"""``python -m torch_jax ops``: the operators that run on JAX, and their implementations."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_jax.memory.storage import tensors_in
from torch_jax.observe import operators, trace_ops


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    about = "say what serves an operator, such as aten.dropout or add.Tensor; without one, list all"
    parser.add_argument("name", nargs="?", help=about)
    parser.add_argument("--family", help="list the operators of a file of torch_jax/ops only")
    parser.add_argument("--call", help="show what a Python expression runs, with torch, F and nn")


def answer(given: argparse.Namespace) -> Iterator[str]:
    """Yield the printed lines; raise ``KeyError`` for an unknown operator or family."""
    if given.call:
        names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
        return itertools.chain([given.call], _steps(lambda: eval(given.call, names)))
    return _operator(given.name) if given.name else _list(given.family)


def _list(family: str | None) -> Iterator[str]:
    """Yield all operators, or those of a family, after lines on the rungs that begin with #."""
    found = operators.operators()
    if family is not None:
        known = {operator.family for operator in found}
        if family not in known:
            raise KeyError(f"no family {family!r}: they are {', '.join(sorted(known - {''}))}")
        found = [operator for operator in found if operator.family == family]
    yield "# rungs, of which the first that can serves an operator:"
    for rung, text in operators.RUNGS.items():
        yield f"#   {rung:14} {text}"
    yield f"{'# operator':60} {'rung':14} where"
    for operator in found:
        yield f"{operator.name:60} {operator.rung:14} {operator.where}".rstrip()


def _operator(name: str) -> Iterator[str]:
    for op in operators.find(name):
        answer = operators.describe(op)
        yield f"{op._schema}".replace("aten::", "aten.", 1)
        yield f"  {answer.rung}: {operators.RUNGS[answer.rung]}"
        if answer.where:
            yield f"  {answer.where}"
        yield ""


def _steps(function: Callable[[], Any]) -> Iterator[str]:
    """Yield the operators that a call reaches on the device, forward and backward."""
    with trace_ops.CallTree(None) as forward:
        result = function()
    outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    weights = [torch.ones_like(output) for output in outputs]
    error = ""
    with trace_ops.CallTree(None) as backward:
        try:
            if outputs:
                torch.autograd.backward(outputs, weights)
        except RuntimeError as failure:  # an operator without a derivative
            error = str(failure)
    nothing = "    runs nothing on the device: its result is its input, or no tensor is there"
    yield from list(_reached(forward.calls)) or [nothing]
    reached = list(_reached(backward.calls))
    if reached or error:
        yield f"    backward: {error}".rstrip()
    yield from reached


def _reached(calls: list[trace_ops.Call]) -> Iterator[str]:
    """Yield the outermost operators of this device below calls, with all that they call."""
    for call in calls:
        if call.operator is None:
            yield from _reached(call.children)
        else:
            yield from call.lines(2, call.line)
