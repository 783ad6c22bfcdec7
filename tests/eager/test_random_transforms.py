"""Random functions under random compositions of transforms, compared with the CPU's."""

from __future__ import annotations

import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import func
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from tests.support.compare import assert_same
from tests.support.executors import by


def written(a):
    b = a.clone()
    b[0].mul_(2)
    return b + a


# All take a matrix of 4 by 4 to one of the same size.
STEPS = {
    "sin": torch.sin,
    "gelu": F.gelu,
    "renorm": lambda a: torch.renorm(a, 2.0, 0, 0.5),  # no rule of PyTorch's
    "log_ndtr": torch.special.log_ndtr,  # nor here
    "matmul": lambda a: a @ a.t() / 4,
    "softmax": lambda a: a.softmax(-1),
    "mean": lambda a: a - a.mean(0, keepdim=True),
    "conv": lambda a: F.conv1d(
        a[None], a[:, :3, None].expand(4, 3, 3)[:, :1].expand(4, 4, 3), padding=1
    )[0],
    "index": lambda a: a[[2, 0, 1, 3]] + a.gather(0, a.argsort(0)),
    "view": lambda a: a.reshape(2, 8).t().reshape(4, 4),
    "as_strided": lambda a: a.as_strided((4, 4), (1, 4)),
    "in place": written,
    "norm": lambda a: F.layer_norm(a, (4,)),
    "attention": lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None])[0],
}


def composed(names):
    def function(a):
        for name in names:
            a = STEPS[name](a)
        return a

    return function


def total(f):
    return lambda a: f(a).square().sum()


# Each takes a function of tensors of some shape to another one; True: of one dimension more.
TRANSFORMS = {
    "vmap": (lambda f: func.vmap(f), True),
    "vmap of columns": (lambda f: func.vmap(f, in_dims=-1, out_dims=-1), True),
    "vmap in chunks": (lambda f: func.vmap(f, chunk_size=2), True),
    "grad": (lambda f: func.grad(total(f)), False),
    "jvp": (lambda f: lambda a: func.jvp(f, (a,), (a.cos(),))[1], False),
    "vjp": (lambda f: lambda a: func.vjp(f, a)[1](a.cos())[0], False),
}


def transformed(names, steps):
    """The function, and the shape of what it takes."""
    function, shape = composed(steps), (4, 4)
    for name in names:
        transform, is_batch = TRANSFORMS[name]
        function = transform(function)
        if is_batch:
            shape = (*shape, 3) if name == "vmap of columns" else (3, *shape)
    return function, shape


steps = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3)
transforms = st.lists(st.sampled_from(sorted(TRANSFORMS)), min_size=1, max_size=3)


def same_as_on_the_cpu(names, parts, executor):
    function, shape = transformed(names, parts)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = function(x)
        except (RuntimeError, NotImplementedError):
            return  # PyTorch refuses it
        actual = by(executor, function)(x.to("jax"))
    assert_same(*map(pytree.tree_leaves, (actual, expected)), strides=False, scale=1e3)


def quietly(examples):
    checks = (HealthCheck.too_slow, HealthCheck.data_too_large)
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=checks
    )


@pytest.mark.slow
@quietly(3)
@given(transforms, steps)
def test_a_few_by_eager_calls(names, parts):
    same_as_on_the_cpu(names, parts, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["eager", "lazy", "jit"])
@quietly(25)
@given(names=transforms, parts=steps)
def test_many_by_every_executor(executor, names, parts):
    same_as_on_the_cpu(names, parts, executor)
