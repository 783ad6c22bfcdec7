"""Where a lowering cannot serve a call, the error is that of the CPU: its type, and its words."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.support import executors
from tests.support.compare import to_jax

aten = torch.ops.aten
ZERO = torch.tensor([0])
CASES = {
    "index": (lambda x, i: x[i], torch.ones(0), ZERO),
    "index of a dim": (lambda x, i: x[:, i], torch.ones(2, 0), ZERO),
    "index_select": (lambda x, i: x.index_select(0, i), torch.ones(0), ZERO),
    "max": (lambda x: x.max(), torch.ones(0)),
    "reflection_pad1d": (lambda x: aten.reflection_pad1d(x, [1, 1]), torch.ones(1, 2, 3, 4)),
    "reflection_pad2d": (lambda x: aten.reflection_pad2d(x, [1] * 4), torch.ones(1, 2, 2, 3, 4)),
    "replication_pad1d": (lambda x: aten.replication_pad1d(x, [1, 1]), torch.ones(1, 2, 3, 4)),
    "ctc_loss": (
        lambda x, y: F.ctc_loss(x, y, (0, 0), (1, 1)),
        torch.zeros(0, 2, 3),
        torch.zeros(2, 1, dtype=torch.int64),
    ),
    "ctc_loss of no batch": (
        lambda x, y: F.ctc_loss(x, y, (), ()),
        torch.zeros(3, 0, 3),
        torch.zeros(0, 1, dtype=torch.int64),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_errors_are_those_of_the_cpu(case):
    function, *inputs = CASES[case]
    with pytest.raises(Exception) as expected:
        function(*inputs)
    before = torch.get_rng_state()
    with pytest.raises(expected.type) as actual:
        function(*to_jax(inputs))
    assert type(actual.value) is expected.type
    assert str(actual.value).startswith(str(expected.value).rstrip())
    assert "in aten." in str(actual.value)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_traced_call_raises_the_same():
    x = torch.ones(1, 2, 3, 4, device="jax")
    with pytest.raises(RuntimeError, match="Expected 2D or 3D"):
        executors.by("jit", lambda x: aten.reflection_pad1d(x + 1, [1, 1]))(x)
