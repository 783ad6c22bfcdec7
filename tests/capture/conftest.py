"""Compare a program's output with ``torch_jax.jit``, both ways, with that of plain calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_jax
from tests.support.difference import How, difference
from tests.support.jitted import assert_run
from tests.support.observe import observe

Compile = Callable[..., Any]
Program = Callable[[Compile], Iterator[Any]]


def _shown(program: Program, compile: Compile) -> list[Any]:
    torch.manual_seed(0)
    return [observe(value) for value in program(compile)]


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
            without = ("_version", "view") if request.param else ()
            different = difference(_shown(program, compile), expected, How(without, tolerance))
        assert different is None, different
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
                yield result, args, [(arg._base, arg._version) for arg in args]

        agree(program, kinds)

    return check
