"""Nothing goes stale under ``torch_jax.jit``: globals, closures, functions and modules."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from typing import Any

import pytest
import torch

import torch_jax
from tests.support.routes import Case, Routes, check_changes, puts, sets

route = Routes()
SCALE: Any = 2.0


def _this_module() -> Any:
    return sys.modules[__name__]


def helper(x, scale=2.0, *, shift=1.0):
    return x * scale + shift


@route
def a_global() -> Case:
    sets(_this_module(), "SCALE", 2.0)[0]()
    return lambda x: x * SCALE, sets(_this_module(), "SCALE", 3.0, 4, True, 2.0)


@route
def a_global_that_is_missing_at_first() -> Case:
    def read(x):
        try:
            return x * MISSING_AT_FIRST  # type: ignore[name-defined]
        except NameError:
            return x

    vars(_this_module()).pop("MISSING_AT_FIRST", None)
    return read, sets(_this_module(), "MISSING_AT_FIRST", 3.0, 4.0)


@route
def a_global_that_hides_a_builtin() -> Case:
    vars(_this_module()).pop("max", None)
    return lambda x: x * max(2, 3), sets(_this_module(), "max", min)


@route
def a_closure() -> Case:
    scale = 2.0

    def change():
        nonlocal scale
        scale += 1

    return lambda x: x * scale, [change, change]


@route
def a_default_argument() -> Case:
    def inner(x, scale=2.0):
        return x * scale

    return lambda x: inner(x), sets(inner, "__defaults__", (3.0,), (4.0,))


@route
def a_default_of_a_keyword() -> Case:
    def inner(x, *, scale=2.0):
        return x * scale

    return lambda x: inner(x), sets(inner, "__kwdefaults__", {"scale": 3.0})


@route
def a_default_of_the_function_itself() -> Case:
    def function(x, scale=2.0):
        return x * scale

    return function, sets(function, "__defaults__", (3.0,))


@route
def a_list_as_default() -> Case:
    config = [2.0]

    def inner(x, scales=config):
        return x * scales[0]

    return lambda x: inner(x), puts(config, 0, 3.0)


@route
def an_attribute_of_a_function() -> Case:
    def inner(x):
        return x * inner.scale

    inner.scale = 2.0
    return lambda x: inner(x), sets(inner, "scale", 3.0)


@route
def the_code_of_a_function() -> Case:
    def inner(x):
        return x * 2

    return lambda x: inner(x), sets(inner, "__code__", (lambda x: x * 3).__code__)


@route
def a_partial() -> Case:
    config = [2.0]
    part = functools.partial(lambda scales, x: x * scales[0], config)
    return lambda x: part(x), puts(config, 0, 3.0)


@route
def a_partial_as_the_function() -> Case:
    config = types.SimpleNamespace(scale=2.0)
    return functools.partial(lambda c, x: x * c.scale, config), sets(config, "scale", 3.0)


@route
def a_lambda_in_a_dict() -> Case:
    config = {"f": lambda x: x * 2}
    return lambda x: config["f"](x), puts(config, "f", lambda x: x * 3)


@route
def a_global_function() -> Case:
    other = functools.partial(helper, scale=5.0)
    changes = sets(_this_module(), "helper", other, helper)
    return lambda x: helper(x), changes


@route
def a_nested_function() -> Case:
    config = types.SimpleNamespace(scale=2.0)

    def function(x):
        def inner(y):
            return y * config.scale

        return sum(map(inner, [x, x]))

    return function, sets(config, "scale", 3.0)


@route
def a_decorated_function() -> Case:
    config = types.SimpleNamespace(scale=2.0)

    def decorate(f):
        @functools.wraps(f)
        def wrapped(x):
            return f(x) * config.scale

        return wrapped

    return lambda x: decorate(lambda y: y + 1)(x), sets(config, "scale", 3.0)


@route
def a_generator() -> Case:
    config = [1.0, 2.0]

    def parts(x):
        for scale in config:
            yield x * scale

    return lambda x: sum(parts(x)), puts(config, 0, 3.0)


@route
def a_cached_function() -> Case:
    config = types.SimpleNamespace(scale=2.0)
    cached = functools.cache(lambda: config.scale)

    def change(value):
        config.scale = value
        cached.cache_clear()

    return lambda x: x * cached(), [functools.partial(change, v) for v in (3.0, 4.0)]


@route
def a_cached_function_that_has_run() -> Case:
    function, changes = a_cached_function()
    function(torch.ones(1))
    return function, changes


@route
def a_module_without_a_file() -> Case:
    config = types.ModuleType("config")
    config.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * config.scale, sets(config, "scale", 3.0)


@route
def an_attribute_of_a_tensor() -> Case:
    weight = torch.nn.Parameter(torch.ones(3, device="jax"))
    weight.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: (x * weight * weight.scale).detach(), sets(weight, "scale", 3.0)


@pytest.mark.parametrize("case", route.values(), ids=route)
def test_a_value_that_changed_is_seen(case):
    check_changes(case)


def test_a_module_of_settings(tmp_path, monkeypatch):
    (tmp_path / "settings_of_a_test.py").write_text("scale = 2.0\nnames = {'a': 1.0}\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = importlib.import_module("settings_of_a_test")
    function = torch_jax.jit(lambda x: x * config.scale * config.names["a"])
    ones = torch.ones(2, device="jax")
    assert function(ones).tolist() == [2, 2]
    config.scale = 3.0
    assert function(ones).tolist() == [3, 3]
    config.names["a"] = 2.0
    assert function(ones).tolist() == [6, 6]
