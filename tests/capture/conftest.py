"""Compare a program's output with ``torch_jax.jit``, both ways, with that of plain calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torch_jax
from tests.support.jitted import assert_run

Compile = Callable[..., Any]
Program = Callable[[Compile], Iterator[Any]]


def _seen(value: Any) -> list[Any]:
    """Return what a user sees of a tree: values, forms, which tensors are one or share memory."""
    leaves, form = pytree.tree_flatten(value)
    found: list[Any] = [form]
    objects: dict[int, int] = {}
    memories: dict[int, int] = {}
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            found.append(leaf)
            continue
        found += [
            objects.setdefault(id(leaf), len(objects)),
            memories.setdefault(leaf.untyped_storage()._cdata, len(memories)),
            (leaf.device, leaf.dtype, leaf.stride(), leaf.storage_offset()),
            (leaf.requires_grad, leaf.is_leaf, leaf.is_inference()),
            leaf.detach().cpu().clone(),
            _seen(leaf.grad) if leaf.is_leaf else None,
        ]
    return found


def _assert_same(ours: Any, theirs: Any, tolerance: float) -> None:
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    elif isinstance(theirs, list):
        for one, other in zip(ours, theirs, strict=True):
            _assert_same(one, other, tolerance)
    elif isinstance(theirs, float):
        assert type(ours) is float and ours == pytest.approx(theirs, tolerance, nan_ok=True)
    else:
        assert type(ours) is type(theirs) and ours == theirs


def _shown(program: Program, compile: Compile) -> list[Any]:
    torch.manual_seed(0)
    return [_seen(value) for value in program(compile)]


@pytest.fixture(params=[False, True], ids=["recorded", "pure"])
def agree(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Hold what a program yields with ``jit`` against what it yields with plain calls.

    Python is skipped in a pure function, but for so many ``kinds`` of call, or one of a range of
    numbers; None: any number.
    """

    def check(program: Program, kinds: int | range | None = 1, tolerance: float = 2e-5) -> None:
        compiled = []

        def compile(function: Any, **options: Any) -> Any:
            compiled.append(torch_jax.jit(function, pure=request.param, **options))
            return compiled[-1]

        expected = _shown(program, lambda function, **_: function)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            if not isinstance(kinds, int) or kinds > 4:
                warnings.filterwarnings("ignore", ".* its Python ran 5 times")
            _assert_same(_shown(program, compile), expected, tolerance)
        for function in compiled:
            found = torch_jax.explain(function).observed
            any_of_them = kinds is None or (isinstance(kinds, range) and found in kinds)
            assert_run(function, request.param, found if any_of_them else kinds)

    check.pure = request.param  # type: ignore[attr-defined]
    return check


@pytest.fixture
def agree_on_calls(agree: Callable[..., None]) -> Callable[..., None]:
    """As :func:`agree`, for calls of a function: results, arguments, and all of these."""

    def check(function: Callable[..., Any], make: Callable[[], list], kinds: Any = 1) -> None:
        def program(compile: Compile) -> Iterator[Any]:
            run = compile(function)
            for args in make():
                result = run(*args)
                others = [arg.grad if arg.is_leaf else arg._base for arg in args]
                yield result, args, others, [arg._version for arg in args]

        agree(program, kinds)

    return check
