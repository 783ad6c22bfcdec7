"""Every entry of PyTorch's operator database as a graph: interpreted over arrays, and compiled.

One sample of each entry, in the first dtype of which the CPU takes one. What fails here though the
single operator passes (:mod:`tests.conformance.gaps`) is listed below, with reasons. In the run of
a week one half of the entries is interpreted and the other half compiled.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal import common_methods_invocations
from torch.utils import _pytree as pytree

import torch_jax
from tests.conformance.checks import detached, reference, told_apart
from tests.conformance.gaps import OTHER_LAYOUTS
from tests.conformance.report import Result
from tests.conformance.samples import drawn, dtypes, in_turn
from tests.conformance.unique import is_random
from tests.support.agreement import assert_agree
from tests.support.arguments import on, outcome, tensors
from torch_jax.memory import storage, transfer

INTERPRETED: dict[str, str] = {"chalf": "complex32 has no twin in JAX"}
COMPILED: dict[str, str] = {
    "chalf": "complex32 has no twin in JAX",
    "tensor_split": "the places to split at are values, of which Dynamo makes sizes that it loses",
}

Call = Callable[[list[torch.Tensor]], Any]


@pytest.mark.parametrize("entry", in_turn(0), ids=lambda e: e.full_name)
def test_interpreted(entry, record):
    """By ``JaxInterpreter``, the graph that ``make_fx`` makes of the entry on the CPU."""

    def run(call: Call, sample: Any) -> Any:
        given = found_in(on("cpu", detached(sample)))
        graph, error = outcome(make_fx(lambda *given: call(list(given))), *given)
        if error is not None:  # there is no graph: values are looked at
            return None
        arrays = [transfer.value_of(tensor.to("jax")) for tensor in given]
        result = torch_jax.JaxInterpreter(graph)(*arrays)
        return pytree.tree_map_only(jax.Array, storage.wrap, result)

    check(entry, INTERPRETED, run, "interpreted", record)


@pytest.mark.parametrize("entry", in_turn(1), ids=lambda e: e.full_name)
def test_compiled(entry, monkeypatch, record):
    """By ``torch.compile``, in one graph, where PyTorch makes one of it on the CPU."""
    # random entries seed within their call, which no graph can
    monkeypatch.setattr(common_methods_invocations, "wrapper_set_seed", _call)

    def run(call: Call, sample: Any) -> Any:
        found, error = outcome(_compiled, call, "jax", on("jax", detached(sample)))
        if error is None:
            return found
        _, elsewhere = outcome(_compiled, call, "aot_eager", on("cpu", detached(sample)))
        if elsewhere is not None or isinstance(error, torch_jax.DataDependentError):
            return None
        raise error

    check(entry, COMPILED, run, "compiled", record)


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _compiled(call: Call, backend: str, arguments: Any) -> Any:
    torch._dynamo.reset()
    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=False)
    return compiled(found_in(arguments))


def check(
    entry: Any,
    gaps: dict[str, str],
    run: Callable[[Call, Any], Any],
    row: str,
    record: Callable[[list[Result]], None],
) -> None:
    """What ``run`` gives for a sample is what the CPU gives, unless the entry is among the gaps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = first_sample(entry)
        if sample is None:
            return
        compared, error = outcome(_compare, entry, sample, run)
    if entry.full_name not in OTHER_LAYOUTS and (compared or error):
        record([Result(row, entry.full_name, "", repr(error) if error else "")])
    if error is not None and entry.full_name not in gaps:
        raise error
    assert error is not None or entry.full_name not in gaps, "it passes: take it off the list"


def _compare(entry: Any, sample: Any, run: Callable[[Call, Any], Any]) -> bool:
    """Raise where they differ; False where there is no graph to compare."""
    leaves, form = pytree.tree_flatten(detached(sample))

    def call(given: list[torch.Tensor]) -> Any:
        rest = iter(given)
        filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, form)
        return entry.op(*args, **kwargs)

    actual = run(call, sample)
    if actual is None:
        return False
    cpu = on("cpu", detached(sample))
    expected = entry.op(*cpu[0], **cpu[1])
    if is_random(entry.full_name, *detached(sample)):
        assert list(map(_form, tensors(actual))) == list(map(_form, tensors(expected)))
        return True
    unique = functools.partial(told_apart, entry, on("cpu", detached(sample)))
    true = reference(entry, sample, _apply(entry), functools.partial(told_apart, entry))
    assert_agree(unique(pytree.tree_map(_to_cpu, actual)), unique(expected), true)
    return True


def _apply(entry: Any) -> Callable[..., Any]:
    return lambda arguments: entry.op(*arguments[0], **arguments[1])


def _form(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.dtype


def _to_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def found_in(arguments: Any) -> list[torch.Tensor]:
    """The tensors among arguments, in the order of pytrees."""
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def first_sample(entry: Any) -> Any:
    """The first sample of strided tensors that the CPU takes; None where there is none."""
    for dtype in dtypes(entry):
        for sample in drawn(entry, dtype):
            result, error = outcome(_apply(entry), on("cpu", detached(sample)))
            strided = all(t.layout is torch.strided for t in found_in((detached(sample), result)))
            if error is None and tensors(result) and strided:
                return sample
    return None
