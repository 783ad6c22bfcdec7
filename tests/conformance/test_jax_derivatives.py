"""Every entry of PyTorch's operator database, differentiated by JAX: as by PyTorch's backward.

Each sample is asked four times: as it is, and with leaves that are rounded, zero and large, so that
there are equal elements, edges and kinks. Where PyTorch's own gradient is not finite, any will do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import torch_jax
from tests.conformance.checks import first_failure, incoming
from tests.conformance.gaps import JAX_GAPS, OTHER_LAYOUTS
from tests.conformance.report import Result
from tests.conformance.samples import differentiable, entries, samples, spread
from tests.conformance.unique import is_random
from tests.support.arguments import on, outcome, tensors
from torch_jax.core.x64 import x64

KNOWN = {name for names in JAX_GAPS.values() for name in names}
REFUSALS = (torch_jax.DataDependentError, torch_jax.NotTraceableError)
MOST = 12  # samples of an entry: each is a program of its own
TOLERANCE = {"rtol": 1e-6, "atol": 1e-7}
CHANGES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.clone,
    lambda x: (x * 2).round() / 2 + 0.0,  # no zeros with a sign
    torch.zeros_like,
    lambda x: x * 1000,
)
ENTRIES = [
    entry
    for entry in entries()
    if differentiable(entry, torch.float64)
    and entry.full_name not in OTHER_LAYOUTS
    and not is_random(entry.full_name, (), {})
]


def arguments_of(sample: Any) -> Any:
    return (sample.input, *sample.args), sample.kwargs


def replaced(arguments: Any, new: dict[int, torch.Tensor]) -> Any:
    """Arguments with other tensors in the places of some, by identity."""
    return pytree.tree_map_only(torch.Tensor, lambda x: new.get(id(x), x), arguments)


def leaves_of(arguments: Any) -> list[torch.Tensor]:
    """The tensors that a gradient is asked for, each once."""
    return list({id(t): t for t in tensors(arguments) if t.requires_grad}.values())


def outputs(entry: Any, sample: Any, arguments: Any) -> tuple[torch.Tensor, ...]:
    args, kwargs = arguments
    found = tensors(sample.output_process_fn_grad(entry.op(*args, **kwargs)))
    return tuple(value for value in found if value.requires_grad)


def by_torch(entry: Any, sample: Any, arguments: Any) -> tuple[Sequence, Sequence]:
    """The gradients of the leaves, and those of the outputs, of which none is 0."""
    leaves, found = leaves_of(arguments), outputs(entry, sample, arguments)
    weights = [incoming(o) + 1 / 16 for o in found]
    options = {"allow_unused": True, "materialize_grads": True}
    return torch.autograd.grad(found, leaves, weights, **options), weights


def by_jax(entry: Any, sample: Any) -> Callable[[Any, Any], Any]:
    """The same as a program of JAX: from leaves and gradients of outputs."""
    arguments = on("jax", arguments_of(sample))
    leaves = [id(leaf) for leaf in leaves_of(arguments)]
    others = {id(t): t for t in tensors(arguments) if t.dtype.is_floating_point}
    others = {at: other for at, other in others.items() if at not in leaves}

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        own = {at: other.clone() for at, other in others.items()}  # which may be written to
        given = own | dict(zip(leaves, values, strict=True))
        return outputs(entry, sample, replaced(arguments, given))

    run = torch_jax.to_jax_function(function, derivatives="jax")
    return jax.jit(lambda values, weights: jax.vjp(run, *values)[1](weights))


def gradients(entry: Any, sample: Any, number: int) -> bool:
    """What is asked of a sample."""
    program, asked = by_jax(entry, sample), False
    for change in CHANGES:
        arguments = on("cpu", arguments_of(sample))
        new = {id(x): change(x.detach()).requires_grad_() for x in leaves_of(arguments)}
        arguments = replaced(arguments, new)
        values = [array(x) for x in leaves_of(arguments)]  # before the operator can write to them
        expected, error = outcome(by_torch, entry, sample, arguments)
        if error is not None or not expected[1]:
            continue
        try:
            found = program(values, tuple(map(array, expected[1])))
        except REFUSALS:
            return False
        asked = True
        for one, other in zip(found, expected[0], strict=True):
            actual, finite = torch.from_numpy(np.array(one)), other.isfinite()
            torch.testing.assert_close(actual[finite], other[finite], **TOLERANCE)
    return asked


def array(tensor: torch.Tensor) -> jax.Array:
    return jnp.asarray(tensor.detach().to("jax"))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.full_name)
def test_derivatives_by_jax(entry, record):
    known = entry.full_name in KNOWN
    with warnings.catch_warnings(), x64():
        warnings.simplefilter("ignore")
        cases = samples(entry, torch.float64, everything=known)
        cases = cases if known else spread(cases, MOST)
        asked, message = first_failure(gradients, entry, cases)
    if asked:
        record([Result("jax derivatives", entry.full_name, "", message)])
    assert known or not message, message
    assert message or not known, "it passes, and needs no line in JAX_GAPS"
