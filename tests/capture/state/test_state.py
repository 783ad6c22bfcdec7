"""Nothing goes stale under ``torch_jax.jit``: values in objects and containers."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import operator
import os
import threading
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_jax
from tests.support.routes import Case, Routes, check_changes, puts, sets

route = Routes()
KEYS = ["scale"]


# --- objects --------------------------------------------------------------------------------------


class Config:
    scale: Any = 2.0

    def __init__(self):
        self.scale = 2.0

    def scaled(self, x):
        return x * self.scale

    @property
    def twice(self):
        return self.scale * 2

    @classmethod
    def of_the_class(cls, x):
        return x * cls.scale


class Derived(Config):
    pass


class Slots:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2.0


@dataclasses.dataclass
class Inner:
    scale: float = 2.0


@dataclasses.dataclass
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)


class Colour(enum.Enum):
    RED = 2.0
    BLUE = 3.0


class Lazy:
    def __getattr__(self, name):
        return self.__dict__["_" + name]


class Descriptor:
    def __get__(self, owner, kind=None):
        return owner.hidden * 2


class Described:
    scale = Descriptor()

    def __init__(self):
        self.hidden = 1.0


@route
def an_attribute() -> Case:
    config = types.SimpleNamespace(scale=2.0)
    return lambda x: x * config.scale, sets(config, "scale", 3.0, 5, False, 2.0)


@route
def the_type_of_an_equal_number() -> Case:
    config = types.SimpleNamespace(scale=True)

    def function(x):
        return x * len(repr(config.scale))

    return function, sets(config, "scale", 1, 1.25)


@route
def the_sign_of_zero() -> Case:
    config = types.SimpleNamespace(scale=0.0)
    return lambda x: 1 / (x * config.scale), sets(config, "scale", -0.0, 0.0)


@route
def an_attribute_by_getattr() -> Case:
    config = types.SimpleNamespace(scale=2.0)
    return lambda x: x * getattr(config, "scale"), sets(config, "scale", 3.0, 4.0)  # noqa: B009


@route
def attributes_named_in_a_tuple() -> Case:
    config = types.SimpleNamespace(scale=2.0, shift=1.0)

    def function(x):
        for name in ("scale", "shift"):
            x = x * getattr(config, name)
        return x

    return function, sets(config, "scale", 3.0) + sets(config, "shift", 5.0)


@route
def attributes_named_in_a_global_list() -> Case:
    config = types.SimpleNamespace(scale=2.0)

    def function(x):
        for key in KEYS:
            x = x * getattr(config, key)
        return x

    return function, sets(config, "scale", 3.0, 4.0)


@route
def an_attribute_with_a_computed_name() -> Case:
    config = types.SimpleNamespace(scale0=2.0, scale1=3.0)

    def function(x):
        for index in range(2):
            x = x * getattr(config, f"scale{index}")
        return x

    return function, sets(config, "scale1", 5.0, 7.0) + sets(config, "scale0", 5.0)


@route
def an_attribute_by_attrgetter() -> Case:
    config = types.SimpleNamespace(scale=2.0)
    get = operator.attrgetter("scale")
    return lambda x: x * get(config), sets(config, "scale", 3.0, 4.0)


@route
def an_attribute_that_is_missing_at_first() -> Case:
    config = types.SimpleNamespace()

    def function(x):
        return x * getattr(config, "scale", 2.0)

    return function, [*sets(config, "scale", 3.0), functools.partial(delattr, config, "scale")]


@route
def an_attribute_asked_for_by_hasattr() -> Case:
    config = types.SimpleNamespace()
    return lambda x: x * (3 if hasattr(config, "scale") else 2), sets(config, "scale", 3.0)


@route
def all_attributes_by_vars() -> Case:
    config = types.SimpleNamespace(scale=2.0)
    return lambda x: x * sum(vars(config).values()), sets(config, "scale", 3.0) + sets(
        config, "another", 5.0
    )


@route
def the_dict_of_an_object() -> Case:
    config = types.SimpleNamespace(scale=2.0)
    return lambda x: x * config.__dict__["scale"], sets(config, "scale", 3.0)


@route
def a_slot() -> Case:
    config = Slots()
    return lambda x: x * config.scale, sets(config, "scale", 3.0, 4)


@route
def a_nested_dataclass() -> Case:
    config = Outer()
    changes = [*sets(config.inner, "scale", 3.0), *sets(config, "inner", Inner(5.0))]
    return lambda x: x * config.inner.scale, changes


@route
def an_object_that_took_the_place_of_another() -> Case:
    config, later = Outer(), Inner(5.0)
    changes = [*sets(config, "inner", later), *sets(later, "scale", 7.0)]
    return lambda x: x * config.inner.scale, changes


@route
def a_method_of_another_object() -> Case:
    config = Config()
    return lambda x: config.scaled(x), sets(config, "scale", 3.0, 4.0)


@route
def a_bound_method() -> Case:
    config = Config()
    scaled = config.scaled
    return lambda x: scaled(x), sets(config, "scale", 3.0, 4.0)


@route
def a_property() -> Case:
    config = Config()
    return lambda x: x * config.twice, sets(config, "scale", 3.0, 4.0)


@route
def a_descriptor() -> Case:
    config = Described()
    return lambda x: x * config.scale, sets(config, "hidden", 3.0, 4.0)


@route
def a_lookup_of_the_objects_own() -> Case:
    config = Lazy()
    config._scale = 2.0
    return lambda x: x * config.scale, sets(config, "_scale", 3.0, 4.0)


@route
def an_attribute_of_a_class() -> Case:
    kind = type("Kind", (Config,), {"scale": 2.0})
    return lambda x: x * kind.scale, sets(kind, "scale", 3.0, 4.0)


@route
def an_attribute_of_a_class_through_an_object() -> Case:
    kind = type("Kind", (), {"scale": 2.0, "__module__": __name__})
    config = kind()
    return lambda x: x * config.scale, sets(kind, "scale", 3.0, 4.0)


@route
def a_class_attribute_shadowed_by_the_objects() -> Case:
    kind = type("Kind", (), {"scale": 2.0, "__module__": __name__})
    config = kind()
    changes = [*sets(config, "scale", 3.0), functools.partial(delattr, config, "scale")]
    return lambda x: x * config.scale, changes


@route
def an_inherited_attribute() -> Case:
    kind = type("Kind", (), {"scale": 2.0, "__module__": __name__})
    derived = type("Below", (kind,), {"__module__": __name__})
    config = derived()
    changes = [*sets(kind, "scale", 3.0), *sets(derived, "scale", 5.0)]
    return lambda x: x * config.scale, changes


@route
def a_classmethod() -> Case:
    kind = type("Kind", (Config,), {"scale": 2.0, "__module__": __name__})
    return lambda x: kind.of_the_class(x), sets(kind, "scale", 3.0, 4.0)


@route
def the_class_of_an_object() -> Case:
    one = type("One", (), {"scaled": lambda self, x: x * 2, "__module__": __name__})
    two = type("Two", (), {"scaled": lambda self, x: x * 3, "__module__": __name__})
    config = one()
    return lambda x: config.scaled(x), sets(config, "__class__", two)


@route
def a_method_replaced_on_the_class() -> Case:
    kind = type("Kind", (), {"scaled": lambda self, x: x * 2, "__module__": __name__})
    config = kind()
    return lambda x: config.scaled(x), sets(kind, "scaled", lambda self, x: x * 3)


@route
def an_enum() -> Case:
    config = types.SimpleNamespace(colour=Colour.RED)
    return lambda x: x * config.colour.value, sets(config, "colour", Colour.BLUE, Colour.RED)


# --- containers -----------------------------------------------------------------------------------


@route
def an_element_of_a_dict() -> Case:
    config = {"scale": 2.0}
    return lambda x: x * config["scale"], puts(config, "scale", 3.0, 4)


@route
def a_key_that_is_missing_at_first() -> Case:
    config: dict[str, float] = {}
    return lambda x: x * config.get("scale", 2.0), puts(config, "scale", 3.0)


@route
def an_element_of_a_list() -> Case:
    config = [2.0, 3.0]
    return lambda x: x * config[0], puts(config, 0, 3.0, 4)


@route
def the_length_of_a_list() -> Case:
    config = [2.0]
    return lambda x: x * len(config), [lambda: config.append(3.0), config.clear]


@route
def a_list_in_a_dict_in_a_tuple() -> Case:
    inner = [2.0]
    config = ({"scale": inner},)
    return lambda x: x * config[0]["scale"][0], puts(inner, 0, 3.0, 4.0)


@route
def an_object_in_a_list() -> Case:
    config = [Inner(2.0), Inner(3.0)]
    function = lambda x: x * sum(c.scale for c in config)  # noqa: E731
    return function, sets(config[1], "scale", 5.0) + puts(config, 0, Inner(7.0))


@route
def an_object_in_a_tuple() -> Case:
    config = (Inner(2.0), Inner(3.0))
    return lambda x: x * max(c.scale for c in config), sets(config[1], "scale", 5.0)


@route
def a_set() -> Case:
    config = {2.0}
    return lambda x: x * sum(config), [lambda: config.add(3.0)]


@route
def a_deque() -> Case:
    config = collections.deque([2.0, 3.0], maxlen=2)
    return lambda x: x * config[0], [lambda: config.append(5.0)]


@route
def a_user_dict() -> Case:
    config = collections.UserDict(scale=2.0)
    return lambda x: x * config["scale"], puts(config, "scale", 3.0)


@route
def a_chain_of_maps() -> Case:
    inner = {"scale": 2.0}
    config = collections.ChainMap({}, inner)
    return lambda x: x * config["scale"], puts(inner, "scale", 3.0)


@route
def a_proxy_of_a_dict() -> Case:
    inner = {"scale": 2.0}
    config = types.MappingProxyType(inner)
    return lambda x: x * config["scale"], puts(inner, "scale", 3.0)


@route
def bytes_that_change() -> Case:
    config = bytearray([2])
    return lambda x: x * config[0], puts(config, 0, 3)


@route
def an_environment_variable() -> Case:
    os.environ["TORCH_JAX_TEST_SCALE"] = "2"
    return lambda x: x * int(os.environ["TORCH_JAX_TEST_SCALE"]), puts(
        os.environ, "TORCH_JAX_TEST_SCALE", "3"
    )


@route
def a_numpy_scalar() -> Case:
    config = types.SimpleNamespace(scale=np.float32(2))
    return lambda x: x * config.scale, sets(config, "scale", np.float32(3), np.float64(4))


@route
def a_numpy_array() -> Case:
    config = np.array([2.0, 3.0])
    return lambda x: x * config[0], puts(config, 0, 3.0, 4.0)


@route
def a_view_of_a_numpy_array() -> Case:
    base = np.arange(4.0)
    config = types.SimpleNamespace(view=base[2:])
    return lambda x: x * config.view[0].item(), puts(base, 2, 3.0, 4.0)


@route
def a_context_variable() -> Case:
    variable = contextvars.ContextVar("scale", default=2.0)
    return lambda x: x * variable.get(), [functools.partial(variable.set, v) for v in (3.0, 4.0)]


@route
def a_value_of_this_thread() -> Case:
    config = threading.local()
    config.scale = 2.0
    return lambda x: x * config.scale, sets(config, "scale", 3.0)


@route
def an_object_held_weakly() -> Case:
    config = Config()
    reference = weakref.ref(config)
    changes = sets(config, "scale", 3.0, 4.0)
    return lambda x: x * reference().scale, changes


@pytest.mark.parametrize("case", route.values(), ids=route)
def test_a_value_that_changed_is_seen(case):
    check_changes(case)


# --- any attribute, any value, any order ----------------------------------------------------------

values = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.5, -0.0, 2.0, float("nan")]),
    st.booleans(),
    st.sampled_from(["", "a", "twice"]),
    st.none(),
    st.lists(st.integers(0, 2), max_size=2),
)
events = st.lists(
    st.one_of(st.just(None), st.tuples(st.sampled_from(["a", "b", "c"]), values)), max_size=8
)


def _weigh(value: Any) -> float:
    """A number that tells values apart, their types too."""
    if isinstance(value, list):
        return 7.5 + sum(value) + 16 * len(value)
    if isinstance(value, str):
        return 3.25 + len(value)
    if value is None:
        return 11.0
    return value + 64 if isinstance(value, bool) else value


def _weighed(config: Any, x: torch.Tensor) -> torch.Tensor:
    total = x * _weigh(config.a) + _weigh(config.b)
    return total - _weigh(config.c[0] if isinstance(config.c, list) and config.c else config.c)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(events)
def test_any_attribute_set_to_any_value_between_calls(sequence):
    config = types.SimpleNamespace(a=1, b=2.0, c=[1])
    function = torch_jax.jit(lambda x: _weighed(config, x))
    x = torch.arange(1.0, 4.0, device="jax")
    for event in [None, *sequence, None]:
        if event is None:
            torch.testing.assert_close(
                function(x).cpu(), _weighed(config, x).cpu(), rtol=0, atol=1e-6, equal_nan=True
            )
        else:
            setattr(config, *event)
