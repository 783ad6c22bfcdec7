"""Every entry of PyTorch's operator database under ``torch.vmap``: as on the CPU, and not by loops.

One sample of each, of two examples that differ. An operator that PyTorch has no rule for warns on
the CPU, and runs once for each example; on the device it does not. In the run of a week one half of
the entries is asked.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.conformance.gaps import OTHER_LAYOUTS, VMAP_GAPS
from tests.conformance.report import Result
from tests.conformance.samples import in_turn

KNOWN = {name for names in VMAP_GAPS.values() for name in names}
MAY_PASS = set(VMAP_GAPS["memory that nobody has written"])
PARTS = 4


def outputs(entry: Any, sample: Any, device: str) -> list[torch.Tensor] | str:
    """What two examples give, or the name of the exception."""
    leaves, form = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(places, tensors, strict=True))
        args, kwargs = pytree.tree_unflatten([given.get(i, v) for i, v in enumerate(leaves)], form)
        found = pytree.tree_leaves(entry.op(*args, **kwargs))
        return tuple(value for value in found if isinstance(value, torch.Tensor))

    try:
        examples = [torch.stack([leaves[i], another(leaves[i])]).to(device) for i in places]
        return [t.cpu() for t in torch.vmap(call, randomness="same")(*examples)]
    except Exception as error:
        return type(error).__name__


def another(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 0.9 if tensor.is_floating_point() or tensor.is_complex() else tensor.clone()


def sample_of(entry: Any) -> Any:
    """The first sample that has tensors to speak of, None where no sample has one."""
    dtypes = entry.supported_dtypes("cpu")
    dtype = next((d for d in (torch.float32, torch.int64) if d in dtypes), torch.complex64)
    found = None
    for sample in itertools.islice(entry.sample_inputs("cpu", dtype), 20):
        leaves = pytree.tree_leaves((sample.input, sample.args))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(t.numel() > 1 for t in tensors):
            return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, sample)
        found = found or (sample if tensors else None)
    return found


def fault(entry: Any) -> str | None:
    """What is wrong with an entry under vmap; empty if nothing is, None if nothing compares."""
    torch.manual_seed(0)
    sample = sample_of(entry)
    if sample is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outputs(entry, sample, "cpu")
        warnings.filterwarnings("error", message=".*performance drop")
        actual = outputs(entry, sample, "jax")
    if isinstance(expected, str):
        return None  # what the CPU refuses may work here
    if isinstance(actual, str):
        return f"raises {actual}"
    try:
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_under_vmap(part, record):
    mine = in_turn(1)[part::PARTS]
    faults = {entry.full_name: fault(entry) for entry in mine}
    compared = {n: what for n, what in faults.items() if what is not None}
    record([Result("vmap", n, "", w) for n, w in compared.items() if n not in OTHER_LAYOUTS])
    faults = {name: what for name, what in faults.items() if what}
    assert not {name: what for name, what in faults.items() if name not in KNOWN}
    stale = {entry.full_name for entry in mine} & KNOWN - faults.keys() - MAY_PASS
    assert not stale, f"they pass, and need no line in VMAP_GAPS: {stale}"
