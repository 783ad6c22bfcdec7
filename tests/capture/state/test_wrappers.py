"""Wrappers with a ``__getattr__``, imports inside functions, and whether two objects are one.

All three are what libraries are made of: such code is compiled, and nothing of it goes stale.
"""

from __future__ import annotations

import collections.abc
import enum
import importlib
import sys
import types

import pytest
import torch
from torch import nn

import torch_jax


def compiled_for_good(function):
    """The function under jit, called until it is compiled, and seen to be."""
    compiled = torch_jax.jit(function, fallback="record")
    for _ in range(3):
        compiled(x())
    explanation = compiled.explain()
    assert explanation.traces == 1, explanation
    assert not any("Python runs" in line for line in str(explanation).splitlines()), explanation
    return compiled


def x() -> torch.Tensor:
    return torch.ones(3, device="jax")


class Inner(nn.Module):
    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 5.0))


class Wrapper(nn.Module):
    """As PEFT's models are written."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "inner":
                raise
            return getattr(self.inner, name)

    def forward(self, x):
        return (x * self.weight * self.scale).detach()


class Plain:
    """A wrapper of no library."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.fixture
def wrapper():
    return Wrapper(Wrapper(Inner())).to("jax")


def test_what_a_wrapper_passes_on_is_compiled_and_guarded(wrapper):
    compiled = compiled_for_good(lambda x: wrapper(x))
    assert compiled(x()).tolist() == [10] * 3
    wrapper.inner.inner.scale = 3.0
    assert compiled(x()).tolist() == [15] * 3
    wrapper.inner.inner.weight.data.fill_(1.0)
    assert compiled(x()).tolist() == [3] * 3


@pytest.mark.parametrize("depth", [0, 1])
def test_what_a_wrapper_gets_itself_hides_what_it_passed_on(wrapper, depth):
    one = (wrapper, wrapper.inner)[depth]
    compiled = compiled_for_good(lambda x: wrapper(x))
    one.scale = 4.0
    assert compiled(x()).tolist() == [20] * 3
    one._parameters["weight"] = nn.Parameter(torch.full((3,), 7.0, device="jax"))
    assert compiled(x()).tolist() == [28] * 3
    del one._parameters["weight"]
    assert compiled(x()).tolist() == [20] * 3


def test_what_a_class_of_wrappers_gets_hides_what_they_passed_on(wrapper, monkeypatch):
    compiled = compiled_for_good(lambda x: wrapper(x))
    monkeypatch.setattr(Wrapper, "scale", 6.0, raising=False)
    assert compiled(x()).tolist() == [30] * 3
    monkeypatch.undo()
    assert compiled(x()).tolist() == [10] * 3


def test_another_hook_is_asked(monkeypatch):
    wrapper = Plain(types.SimpleNamespace(scale=2.0))
    compiled = compiled_for_good(lambda x: x * wrapper.scale)
    monkeypatch.setattr(Plain, "__getattr__", lambda self, name: 9.0)
    assert compiled(x()).tolist() == [9] * 3
    monkeypatch.undo()
    wrapper.inner = types.SimpleNamespace(scale=4.0)
    assert compiled(x()).tolist() == [4] * 3


def test_a_hook_that_computes_other_names_runs_each_time():
    class Prefixed(Plain):
        def __getattr__(self, name):
            return getattr(self.inner, "_" + name)

    wrapper = Prefixed(types.SimpleNamespace(_scale=2.0))
    compiled = torch_jax.jit(lambda x: x * wrapper.scale, fallback="record")
    for scale in (2.0, 3.0, 4.0, 5.0):
        wrapper.inner._scale = scale
        assert compiled(x()).tolist() == [scale] * 3
    assert "names are computed" in str(compiled.explain())


# --- imports --------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").write_text("scale = 2.0\ncount = []\ncount.append(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "imported_late", raising=False)
    importlib.invalidate_caches()
    yield "imported_late"
    sys.modules.pop("imported_late", None)


def test_modules_may_be_imported_inside(module):
    def function(x):
        import math

        import imported_late
        from imported_late import scale

        return x * scale * imported_late.scale + math.pi * 0

    compiled = torch_jax.jit(function, fallback="record")
    for _ in range(4):
        assert compiled(x()).tolist() == [4] * 3
    assert compiled.explain().traces == 1, compiled.explain()
    assert sys.modules[module].count == [1]
    sys.modules[module].scale = 3.0
    assert compiled(x()).tolist() == [9] * 3
    other = types.ModuleType(module)
    other.scale = 5.0
    sys.modules[module] = other
    assert compiled(x()).tolist() == [25] * 3


def test_a_module_that_is_imported_later_is_run(module):
    flag = types.SimpleNamespace(late=False)

    def function(x):
        if flag.late:
            import imported_late

            return x * imported_late.scale
        return x

    compiled = compiled_for_good(function)
    assert module not in sys.modules
    flag.late = True
    for _ in range(3):
        assert compiled(x()).tolist() == [2] * 3
    sys.modules[module].scale = 7.0
    assert compiled(x()).tolist() == [7] * 3


# --- identities -----------------------------------------------------------------------------------

UNSET = object()


class Mode(enum.Enum):
    DOUBLE = "double"
    HALVE = "halve"


def twice(x):
    return x * 2


def test_classes_functions_enums_and_sentinels_may_be_asked_for():
    config = types.SimpleNamespace(mode=Mode.DOUBLE, function=twice, extra=UNSET)

    def function(x):
        if config.extra is not UNSET:
            return x * 100
        x = x * 2 if config.mode is Mode.DOUBLE else x / 2
        x = x + 1 if type(x) is torch.Tensor and x.dtype is torch.float32 else x
        return x if config.function is twice else -x

    compiled = compiled_for_good(function)
    assert compiled(x()).tolist() == [3] * 3
    config.mode = Mode.HALVE
    assert compiled(x()).tolist() == [1.5] * 3
    config.function = lambda x: x * 2
    assert compiled(x()).tolist() == [-1.5] * 3
    config.extra = None
    assert compiled(x()).tolist() == [100] * 3
    config.extra = UNSET
    assert compiled(x()).tolist() == [-1.5] * 3


# --- other objects of libraries -------------------------------------------------------------------


def test_mappings_of_a_users_own():
    class Table(collections.abc.Mapping):
        def __init__(self):
            self.values_ = {"scale": 2.0}

        def __getitem__(self, key):
            return self.values_[key]

        def __iter__(self):
            return iter(self.values_)

        def __len__(self):
            return len(self.values_)

    table = Table()
    compiled = compiled_for_good(lambda x: x * table.get("scale", 1.0) * ("shift" in table or 3))
    assert compiled(x()).tolist() == [6] * 3
    table.values_["scale"] = 5.0
    assert compiled(x()).tolist() == [15] * 3
    table.values_["shift"] = 0.0
    assert compiled(x()).tolist() == [5] * 3


def test_an_object_that_cannot_be_looked_at_is_left_to_python():
    class Resists:
        scale = 2.0

        @property
        def __dict__(self):
            raise OSError("not yet")

    one = Resists()
    compiled = torch_jax.jit(lambda x: x * one.scale, fallback="record")
    for _ in range(3):
        assert compiled(x()).tolist() == [2] * 3
    assert "cannot be looked at: OSError" in str(compiled.explain())


# --- tensors in what never changes ----------------------------------------------------------------


def test_tensors_in_tuples_and_in_defaults():
    state = types.SimpleNamespace(pair=(x(), (x() * 2,)))
    three, four = x() * 3, x() * 4

    def helper(x, scale=three, *, shift=four):
        return x * scale + shift

    def function(x):
        return helper(x) + state.pair[0] + state.pair[1][0]

    compiled = compiled_for_good(function)
    assert compiled(x()).tolist() == [10] * 3
    state.pair[1][0].add_(1)
    assert compiled(x()).tolist() == [11] * 3
    state.pair = (x() * 5, state.pair[1])
    assert compiled(x()).tolist() == [15] * 3
    helper.__kwdefaults__["shift"] = x()
    assert compiled(x()).tolist() == [12] * 3
    helper.__defaults__ = (x() * 10,)
    assert compiled(x()).tolist() == [19] * 3


# --- what code may do, and does not ---------------------------------------------------------------


def test_new_tensors_may_be_told_to_want_gradients():
    weight = nn.Parameter(x())

    def function(x):
        bias = torch.zeros(3, device="jax")
        bias.requires_grad = True
        loss = (x * weight + bias * 2).sum()
        loss.backward()
        found, weight.grad = weight.grad + bias.grad, None
        return found

    compiled = compiled_for_good(function)
    assert compiled(x()).tolist() == [3] * 3


def test_tensors_that_were_there_run_each_time_where_that_is_set():
    weight, state = nn.Parameter(x()), types.SimpleNamespace(frozen=False)

    def function(x):
        if state.frozen:
            weight.requires_grad = False
        return x * weight

    compiled = torch_jax.jit(function, fallback="record")
    for _ in range(3):
        assert compiled(x()).requires_grad
    assert compiled.explain().traces == 1, compiled.explain()
    state.frozen = True
    for _ in range(3):
        assert not compiled(x()).requires_grad
    weight.requires_grad_(True)
    for _ in range(3):
        assert not compiled(x()).requires_grad
        assert not weight.requires_grad


def test_signatures_are_read_where_functions_are_guarded():
    config = types.SimpleNamespace(function=twice)

    def function(x):
        import inspect

        return config.function(x) * len(inspect.signature(config.function).parameters)

    compiled = compiled_for_good(function)
    assert compiled(x()).tolist() == [2] * 3
    config.function = lambda x, other=None: x
    assert compiled(x()).tolist() == [2] * 3
    config.function = lambda x, other=None, third=None: x
    assert compiled(x()).tolist() == [3] * 3
