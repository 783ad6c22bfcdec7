"""Autocast on the device follows PyTorch's CUDA policies, operator by operator."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.nn import functional as F
from torch.testing._internal.autocast_test_lists import AutocastTestLists

from tests.support.autocast import autocast
from tests.support.values import rand, randn
from torch_jax.dispatch import autocast as amp
from torch_jax.eager import variants

LOWER = (torch.bfloat16, torch.float16)


@functools.cache
def lists():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutocastTestLists("cpu")


def moved_to(device, value, dtype=torch.float16):
    """The arguments of a case elsewhere, those in float16 in another dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(device, dtype if value.dtype == torch.float16 else value.dtype)
    if isinstance(value, list | tuple):
        return type(value)(moved_to(device, v, dtype) for v in value)
    return value


def cases(*names):
    found = []
    for name in names:
        for index, case in enumerate(getattr(lists(), name)):
            if "cudnn" not in case[0] and case[0] != "einsum":  # the case of einsum is wrong
                found.append(pytest.param(name, case, id=f"{name}-{case[0]}-{index}"))
    return found


def options_of(case):
    """The keyword arguments of a case; a list may say instead where it must be skipped."""
    return case[2] if len(case) > 2 and isinstance(case[2], dict) else {}


def function_named(name, kind):
    if kind.startswith("methods"):
        return lambda self, *rest: getattr(self, name)(*rest)
    owners = (torch, torch._C._nn, torch._C._linalg, F)
    return next(getattr(owner, name) for owner in owners if hasattr(owner, name))


def dtypes_in(result):
    values = result if isinstance(result, list | tuple) else [result]
    return {v.dtype for v in values if isinstance(v, torch.Tensor)}


POLICY_LISTS = ("torch_fp16", "nn_fp16", "linalg_fp16", "methods_fp16")
FLOAT32_LISTS = ("torch_fp32", "nn_fp32", "methods_fp32")


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("kind, case", cases(*POLICY_LISTS))
def test_products_run_in_the_dtype_of_the_region(kind, case, dtype):
    function = function_named(case[0], kind)
    args, options = moved_to("jax", case[1]), options_of(case)
    with autocast(dtype):
        result = function(*args, **options)
    assert dtypes_in(result) == {dtype}
    # what is in float32 outside is the dtype of the region inside: nothing else was changed
    with autocast(dtype, enabled=False):
        assert dtypes_in(function(*args, **options)) == {torch.float32}


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("kind, case", cases(*FLOAT32_LISTS))
def test_what_needs_range_runs_in_float32(kind, case, dtype):
    function = function_named(case[0], kind)
    args, options = moved_to("jax", case[1], dtype), options_of(case)
    with autocast(dtype):
        result = function(*args, **options)
    assert dtypes_in(result) == {torch.float32}
    wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype == dtype else a for a in args]
    torch.testing.assert_close(
        result.cpu(),
        function(*to_cpu_device(wide), **options),
        rtol=1e-4,
        atol=1e-4,
        equal_nan=True,
    )


def to_cpu_device(values):
    return [v.cpu() if isinstance(v, torch.Tensor) else v for v in values]


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("kind, case", cases("torch_need_autocast_promote"))
def test_mixed_arguments_run_in_the_widest_dtype(kind, case, dtype):
    function = function_named(case[0], kind)
    args = moved_to("jax", case[1], dtype)
    narrow = [
        a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]
    with autocast(dtype):
        assert dtypes_in(function(*args)) == {torch.float32}
        assert dtypes_in(function(*narrow)) == {dtype}


@pytest.mark.parametrize(
    "kind, case", cases("torch_expect_builtin_promote", "methods_expect_builtin_promote")
)
def test_the_rest_promotes_as_it_does_outside(kind, case):
    name, args, expected = case
    if not hasattr(torch if kind.startswith("torch") else torch.Tensor, name):
        pytest.skip(f"{name} is of Python 2")
    with autocast(torch.float16):
        result = function_named(name, kind)(*moved_to("jax", args))
    assert isinstance(result, bool) or result.dtype == expected


def test_every_operator_of_the_table_is_in_this_release():
    for names in amp.POLICIES.values():
        for name in names.split():
            assert variants.overload(name) is not None, name


def test_the_table_is_that_of_the_installed_headers():
    header = torch.__path__[0] + "/include/ATen/autocast_mode.h"
    text = open(header).read()
    policies = {
        "LOWER_PRECISION_FP": "lower_precision",
        "FP32": "float32",
        "FP32_SET_OPT_DTYPE": "float32_output",
        "PROMOTE": "widest",
    }
    for macro, policy in policies.items():
        body = text.partition(f"#define AT_FORALL_{macro}(_)")[2].partition("\n\n")[0]
        calls = [line.strip().rstrip("\\").strip() for line in body.splitlines()]
        names = {c[2:-1].replace(", ", ".") for c in calls if c.startswith("_(")}
        assert names == set(amp.POLICIES[policy].split()), macro


def test_binary_cross_entropy_is_refused():
    p = rand(3)
    with autocast(), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(p, p)
    with autocast(), autocast(enabled=False):
        assert F.binary_cross_entropy(p, p).dtype == torch.float32


def test_a_dtype_asked_for_is_given():
    x = torch.ones(3, 3, device="jax", dtype=torch.bfloat16)
    with autocast():
        assert x.sum(dtype=torch.bfloat16).dtype == torch.bfloat16
        assert torch.softmax(x, 0, torch.float64).dtype == torch.float64
        assert x.cumsum(0, dtype=torch.float16).dtype == torch.float16
        assert torch.linalg.norm(x, dtype=torch.float64).dtype == torch.float64


def test_float64_and_integers_are_left_alone():
    x = torch.ones(3, 3, device="jax", dtype=torch.float64)
    n = torch.ones(3, 3, device="jax", dtype=torch.int64)
    with autocast():
        assert (x @ x).dtype == torch.float64
        assert x.exp().dtype == x.sum().dtype == x.norm().dtype == torch.float64
        assert n.sum().dtype == torch.int64


def test_other_lower_precision_dtypes_do_not_mix():
    x = torch.ones(3, device="jax", dtype=torch.float16)
    with autocast(torch.bfloat16), pytest.raises(RuntimeError, match="autocast"):
        torch.addcmul(x, x, x)


def test_tensors_on_the_cpu_are_left_alone():
    x = torch.ones(3, 3)
    with autocast():
        assert (x @ x).dtype == torch.float32


def test_what_operators_are_composed_of_is_left_alone():
    """``cross_entropy`` takes ``log_softmax`` and ``nll_loss``; a norm in it would cast again."""
    x = randn(4, 5)
    target = torch.tensor([0, 1, 2, 3], device="jax")
    with autocast():
        low = (x @ x.T)[:, :5]
        assert low.dtype == torch.bfloat16
        assert F.cross_entropy(low, target[: len(low)] % low.shape[1]).dtype == torch.float32
        assert F.normalize(low).dtype == torch.float32
