"""The work that the first results of a process do without, by counts."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import pytest
import torch

from tests.support.processes import script
from torch_jax._private import symbolic

pytestmark = pytest.mark.xdist_group("first_use")


@pytest.fixture(scope="module")
def first() -> dict[str, Any]:
    """What one process saw that did little on the device."""
    # as users start it: the flags of tests leave XLA no faster tier, of which NumPy is the first
    return json.loads(script("first_results", new=True, XLA_FLAGS=None))


def test_the_first_result_compiles_nothing_and_lowers_nothing(first):
    assert first["result"] == [2.0, 2.0, 2.0]
    assert first["lowered"] == []


def test_the_first_results_import_only_what_they_need(first):
    assert first["imported"] == []


def test_kernels_are_made_when_they_are_called(first):
    assert first["kernels"] < 20


def test_symbolic_sizes_are_there_when_they_are_asked_for(first):
    assert first["before"] == "Placeholder" and first["after"] == "module"
    assert first["one module"] and first["symbolic"] == "3*s"


@pytest.fixture
def placed(monkeypatch):
    """The placeholder in its place, as in a process that has imported no sympy."""
    torch.jax.init()
    place = symbolic.Placeholder(symbolic.SHAPES, {})
    monkeypatch.setitem(sys.modules, symbolic.SHAPES, place)
    return place


def test_a_placeholder_stands_for_its_module(placed):
    held = importlib.import_module(symbolic.SHAPES)
    assert held is placed and held.__spec__.name == symbolic.SHAPES
    assert not hasattr(held, "__file__") and sys.modules[symbolic.SHAPES] is placed


VALUES = (True, False, 0, 1, 3, 2.5, (), (2, 3), [2, 3], (2, True), None, "text")


def told(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", symbolic._PLAIN)
def test_answers_to_plain_values_are_those_of_the_module(name):
    module = symbolic.imported(symbolic.SHAPES)
    answer, real = symbolic._answer(name, symbolic._PLAIN[name]), getattr(module, name)
    for value in VALUES:
        assert told(answer, value) == told(real, value), value
    for pair in ((x, y) for x in VALUES for y in VALUES):
        if name.startswith("sym_"):
            found, wanted = told(answer, *pair), told(real, *pair)
            assert (type(found), found) == (type(wanted), wanted), pair


def test_expressions_are_recognized_as_by_sympy():
    import sympy

    assert isinstance(sympy.Symbol("s") * 3, symbolic.Expression)
    assert not isinstance(3, symbolic.Expression)
    assert symbolic._maximum(2, 3) == 3


def test_the_functions_that_ask_for_sympy_work_with_and_without():
    import sympy
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
    from torch._prims_common import elementwise_dtypes

    torch.ones(2, device="jax")
    x = torch.ones(2, dtype=torch.float16)
    for value in (2, 2.5, sympy.Integer(2)):
        found = elementwise_dtypes(x, value, type_promotion_kind=KIND.DEFAULT)
        assert found == (torch.float32, torch.float16)
