"""The ladder says what PyTorch's dispatcher does."""

from __future__ import annotations

import pytest
import torch

from torch_jax._private import pytorch
from torch_jax.dispatch import ladder
from torch_jax.eager import variants

# What PyTorch's dispatcher calls what it has for a device, and the rungs that this may be.
RUNGS = {
    "kernel": {"table", "kernel", "variant"},
    "default backend kernel": {"composite", "view"},
    "math kernel": {"composite", "view"},
    "backend fallback": {"view", "variant", "decomposition", "cpu", "none"},
}


def overloads():
    names = [n.removeprefix("aten::") for n in pytorch.all_op_names() if n.startswith("aten::")]
    return [op for op in map(variants.overload, names) if op is not None]


def in_the_dispatcher(op):
    """What the dispatcher calls for the device: the kind of an entry of its table."""
    table = torch._C._dispatch_dump_table(op.name()).splitlines()
    (line,) = (line for line in table if line.startswith("PrivateUse1:"))
    return line.rpartition("[")[2].rstrip("]")


def test_the_rung_of_every_overload_is_what_the_dispatcher_calls():
    torch.empty(0, device="jax")
    known = {torch.ops.aten.scaled_dot_product_attention.default: {"composite"}}
    found = {op: (in_the_dispatcher(op), ladder.rung(op)) for op in overloads()}
    assert len(found) > 2500
    wrong = {
        str(op): pair
        for op, pair in found.items()
        if pair[1] not in known.get(op, RUNGS.get(pair[0], set()))
    }
    assert not wrong


@pytest.mark.parametrize("name", ["relu", "relu_", "add.out", "view", "dropout", "empty_strided"])
def test_rung_and_call_are_one_answer(name):
    op = variants.overload(name)
    assert ladder.kernel_of(op) is ladder.served(op).call
    assert ladder.rung(op) == ladder.served(op).rung
