"""Masks and indices of dtypes that are not theirs: taken or refused as on the CPU."""

from __future__ import annotations

import pytest
import torch

import torch_jax
from tests.support import executors
from tests.support.compare import assert_same, check

CASES = {
    "masked_select": lambda x, m: torch.masked_select(x, m),
    "masked_fill": lambda x, m: x.masked_fill(m, 9.0),
    "masked_fill_": lambda x, m: x.masked_fill_(m, 9.0),
    "masked_scatter": lambda x, m: x.masked_scatter(m, -x),
    "where": lambda x, m: torch.where(m, x, -x),
    "where_number": lambda x, m: torch.where(m, 1.0, x),
    "where_alone": lambda x, m: torch.where(m),
    "getitem": lambda x, m: x[m],
    "setitem": lambda x, m: x.__setitem__(m, 7.0),
    "index_put": lambda x, m: x.index_put((m,), x[0]),
    "take": lambda x, m: torch.take(x, m),
    "gather": lambda x, m: torch.gather(x, 0, m),
    "index_select": lambda x, m: x.index_select(0, m),
    "index_fill": lambda x, m: x.index_fill(0, m, 1.0),
    "put": lambda x, m: x.put(m, x),
    "out": lambda x, m: torch.masked_select(x, m, out=torch.empty_like(x)),
}
DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_of_masks_and_indices(dtype):
    mask = torch.tensor([1, 0, 1, 1]).to(dtype)
    for case in CASES.values():
        _compare(case, mask, "eager")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("executor", [executors.param(name) for name in executors.COMPILED])
def test_dtypes_of_masks_in_programs(executor):
    for name in ("masked_fill", "where", "index_select"):
        for dtype in (torch.bool, torch.uint8, torch.int64):
            case = f"{name}_{str(dtype).removeprefix('torch.')}"
            with executors.outcome(executor, case):
                _compare(CASES[name], torch.tensor([1, 0, 1, 1]).to(dtype), executor)


LOOKING = {
    "getitem": lambda x, m: x[m].sum(),
    "nonzero": lambda x, m: m.nonzero().sum(),
    "masked_select": lambda x, m: torch.masked_select(x, m).sum(),
    "repeat_interleave": lambda x, m: torch.repeat_interleave(x, m.long()).sum(),
    "equal": lambda x, m: x * torch.equal(x, x * m),
}


@pytest.mark.parametrize("name", LOOKING)
def test_a_pure_function_of_which_an_operator_looks_at_values_runs_python(name):
    x = torch.arange(4.0)
    masks = [torch.arange(4) < n for n in (1, 2, 3, 2)]
    function = torch_jax.jit(LOOKING[name], pure=True)
    words = r"cannot skip its Python: an operator looks at a value \(.*test_masks.py:\d+, in"
    with pytest.warns(UserWarning, match=words):
        found = [function(x.to("jax"), mask.to("jax")) for mask in masks]
    assert_same(found, [LOOKING[name](x, mask) for mask in masks])


def _compare(case, mask, executor):
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    try:
        case(x.clone(), mask)
    except Exception as error:
        with pytest.raises(type(error)):
            executors.by(executor, case)(x.to("jax"), mask.to("jax"))
    else:
        check(case, x, mask, executor=executor)
