"""The ladder agrees with PyTorch's dispatcher."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.support.compare import check
from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.dispatch import ladder, registration
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


@pytest.mark.slow
def test_the_rung_of_every_overload_is_what_the_dispatcher_calls():
    torch.empty(0, device="jax")
    known = {variants.overload(name): {"view"} for name in registration.VIEWS}
    known[torch.ops.aten.scaled_dot_product_attention.default] = {"composite"}
    found = {op: (in_the_dispatcher(op), ladder.rung(op)) for op in overloads()}
    assert len(found) > 2500
    wrong = {
        str(op): pair
        for op, pair in found.items()
        if pair[1] not in known.get(op, RUNGS.get(pair[0], set()))
    }
    # a few are registered by their names, and the door leads to what PyTorch has
    doors = [op for op, pair in wrong.items() if pair == ("kernel", "composite")]
    assert len(doors) < 20 and len(wrong) == len(doors), wrong


def test_names_tell_what_the_table_serves():
    """Without a look at schemas: every overload that PyTorch would otherwise compose itself."""
    torch.empty(0, device="jax")
    keys = [key.name for key in pytorch.COMPOSITE_KEYS]
    served = {
        variants.table_name(op)
        for op in overloads()
        if ladder.rung(op) in RUNGS["kernel"]
        and any(pytorch.has_kernel(op.name(), key) for key in keys)
    }
    assert len(served) > 900
    assert not served - set(registration.served_names())


def test_a_kernel_is_made_at_the_first_call_once_for_all_threads():
    torch.empty(0, device="jax")
    name, op = "special_log_ndtr", torch.ops.aten.special_log_ndtr.default
    door = ladder.door(name)
    ladder.KERNELS_BY_OP.pop(op, None)
    ladder._served.pop(op, None)
    x = torch.ones(2, device="jax")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: door(x), range(8)))
    expected = torch.special.log_ndtr(torch.ones(2))
    assert all(torch.allclose(result.cpu(), expected) for result in results)
    assert door.func is ladder.served(op).call


@pytest.mark.parametrize("name", ["relu", "relu_", "add.out", "view", "dropout", "empty_strided"])
def test_rung_and_call_are_one_answer(name):
    op = variants.overload(name)
    assert ladder.kernel_of(op) is ladder.served(op).call
    assert ladder.rung(op) == ladder.served(op).rung


def test_an_operator_may_both_give_results_and_write_arguments():
    state = [torch.ones(1).long(), torch.ones(1).long(), *map(torch.tensor, ([0.0], [1.0], [1.0]))]

    def observe(x, *state):
        helper = torch.ops.aten._fused_moving_avg_obs_fq_helper
        return helper(x, *state, 0.01, 0, 255, 0, False, False)

    given = torch.randn(3, 4), *state, torch.zeros(1, dtype=torch.int32)
    with config.temporarily("cpu_fallback", "silent"):
        check(observe, *given)


@pytest.mark.parametrize("eager", ["torch", "xla"])
def test_an_operator_that_is_made_of_its_own_overload_is_decomposed(eager):
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    with config.temporarily("eager_on_cpu", eager):
        check(lambda x: torch.renorm(x, 2, 0, 1.0), x)
        check(lambda x: x.renorm_(2, 0, 1.0), x)
        check(lambda x: torch.renorm(x, 2, 0, 1.0, out=torch.empty_like(x)), x)
