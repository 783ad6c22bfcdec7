"""Nothing goes stale under ``torch_jax.jit``: modules, parameters, gradients."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.routes import Case, Routes, check_changes, puts, sets

route = Routes()


def linear() -> nn.Module:
    """One on the device, from the seed that a test has set."""
    return nn.Linear(3, 3).to("jax")


def number(value: float) -> torch.Tensor:
    return torch.full((3, 3), value, device="jax")


# --- modules --------------------------------------------------------------------------------------


@route
def training_mode_of_a_module() -> Case:
    model = nn.Sequential(linear(), nn.BatchNorm1d(3).to("jax"))
    return lambda x: model(torch.stack([x, -x])), [model.eval, model.train]


@route
def training_mode_of_dropout() -> Case:
    model = nn.Sequential(nn.Dropout(0.5), linear())
    return lambda x: model(x.repeat(8)[:3]), [model.eval]


@route
def the_probability_of_dropout() -> Case:
    drop = nn.Dropout(0.0)
    return lambda x: drop(x.repeat(16)), sets(drop, "p", 0.5, 1.0, 0.0)


@route
def momentum_of_a_batch_norm() -> Case:
    norm = nn.BatchNorm1d(3).to("jax")

    def function(x):
        norm(torch.stack([x, -x]))
        return norm.running_var

    return function, sets(norm, "momentum", 0.9)


@route
def a_forward_hook_added_and_removed() -> Case:
    model, handles = linear(), []
    add = lambda: handles.append(  # noqa: E731
        model.register_forward_hook(lambda module, args, out: out * 2)
    )
    return lambda x: model(x), [add, lambda: handles.pop().remove()]


@route
def a_pre_hook_that_reads_a_value() -> Case:
    model, config = linear(), {"scale": 2.0}
    model.register_forward_pre_hook(lambda module, args: (args[0] * config["scale"],))
    return lambda x: model(x), puts(config, "scale", 3.0, 4.0)


@route
def a_hook_of_a_submodule() -> Case:
    model = nn.Sequential(linear(), linear())

    def add():
        model[1].register_forward_hook(lambda module, args, out: out + 1)

    return lambda x: model(x), [add, add]


@route
def a_forward_pre_hook_added() -> Case:
    model = linear()

    def add():
        model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))

    return lambda x: model(x), [add]


@route
def a_hook_of_all_modules() -> Case:
    model, handles = linear(), []

    def add():
        register = nn.modules.module.register_module_forward_hook
        handles.append(register(lambda module, args, out: out * 2))

    return lambda x: model(x), [add, lambda: handles.pop().remove()]


def _gradient_of(model: nn.Module) -> Any:
    def function(x):
        inner = model[0].weight
        inner.grad = None
        model(x).sum().backward()
        return inner.grad

    return function


@route
def a_backward_hook() -> Case:
    model = nn.Sequential(linear(), linear())

    def add():
        model[1].register_full_backward_hook(lambda module, given, out: (given[0] * 2,))

    return _gradient_of(model), [add]


@route
def a_backward_pre_hook() -> Case:
    model = nn.Sequential(linear(), linear())

    def add():
        model[1].register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,))

    return _gradient_of(model), [add]


@route
def a_hook_of_a_parameter() -> Case:
    weight, handles = nn.Parameter(number(1.0)), []

    def function(x):
        weight.grad = None
        (x @ weight).sum().backward()
        return weight.grad

    def add():
        handles.append(weight.register_hook(lambda gradient: gradient * 2))

    return function, [add, lambda: handles.pop().remove()]


@route
def a_hook_after_accumulation() -> Case:
    weight = nn.Parameter(number(1.0))

    def function(x):
        weight.grad = None
        (x @ weight).sum().backward()
        return weight.grad

    def double(parameter):
        parameter.grad.mul_(2)

    return function, [lambda: weight.register_post_accumulate_grad_hook(double)]


@route
def a_submodule_replaced() -> Case:
    model = nn.Sequential(linear(), nn.ReLU())
    changes = [*puts(model, 0, linear()), *puts(model, 1, nn.Tanh(), nn.Sigmoid())]
    return lambda x: model(x), changes


@route
def a_submodule_added() -> Case:
    model = nn.Sequential(linear())
    return lambda x: model(x), [functools.partial(model.append, nn.Tanh()), lambda: model.pop(1)]


@route
def a_method_replaced_on_a_module() -> Case:
    model = linear()
    return lambda x: model(x), sets(model, "forward", lambda x: x * 7)


@route
def an_attribute_of_a_module() -> Case:
    model = nn.LayerNorm(3).to("jax")
    return lambda x: model(x), sets(model, "eps", 0.5, 2.0)


@route
def a_parameter_replaced() -> Case:
    model = linear()
    changes = sets(model, "bias", nn.Parameter(torch.ones(3, device="jax")), None)
    return lambda x: model(x), changes


@route
def the_data_of_a_parameter() -> Case:
    model = linear()
    changes = [*sets(model.weight, "data", number(2.0)), lambda: model.weight.data.fill_(3.0)]
    return lambda x: model(x), changes


@route
def a_parameter_written_in_place() -> Case:
    model = linear()

    def write():
        with torch.no_grad():
            model.weight.mul_(2)

    return lambda x: model(x), [write, lambda: nn.init.ones_(model.weight)]


@route
def a_parameter_of_another_dtype() -> Case:
    model = linear()

    def function(x):
        return model(x.to(model.weight.dtype))

    return function, [model.double, model.bfloat16, model.float]


@route
def a_buffer_replaced_and_written() -> Case:
    model = linear()
    model.register_buffer("mask", torch.ones(3, device="jax"))
    changes = sets(model, "mask", torch.tensor([1.0, 0, 1], device="jax"))
    changes += [lambda: model.mask.fill_(3.0)]
    return lambda x: model(x) * model.mask, changes


@route
def weights_tied_between_calls() -> Case:
    one, two = linear(), linear()

    def function(x):
        with torch.no_grad():
            one.weight.add_(1.0)
        return two(one(x))

    return function, sets(two, "weight", one.weight) + sets(
        one, "weight", nn.Parameter(number(1.0))
    )


@route
def memory_shared_between_calls() -> Case:
    one, two = torch.ones(3, device="jax"), torch.ones(3, device="jax")

    def function(x):
        one.add_(1)
        two.mul_(2)
        return x * one + two

    return function, [lambda: two.set_(one)]


@route
def a_state_dict_loaded() -> Case:
    model, other = linear(), linear()
    load = lambda assign: model.load_state_dict(other.state_dict(), assign=assign)  # noqa: E731

    def write():
        nn.init.ones_(model.weight.data)
        nn.init.ones_(other.weight.data)

    return lambda x: model(x), [functools.partial(load, False), write]


@route
def a_state_dict_assigned() -> Case:
    model, other = linear(), linear()
    assign = lambda: model.load_state_dict(other.state_dict(), assign=True)  # noqa: E731
    return lambda x: model(x), [assign, lambda: nn.init.ones_(other.weight.data)]


@route
def requires_grad_toggled() -> Case:
    model = nn.Sequential(linear(), linear())

    def function(x):
        model.zero_grad()
        model(x).sum().backward()
        found = [p.grad for p in model.parameters() if p.grad is not None]
        return torch.cat([g.flatten() for g in found])

    first, second = model[0], model[1]
    changes = [lambda: first.requires_grad_(False), lambda: second.bias.requires_grad_(False)]
    return function, [*changes, lambda: first.weight.requires_grad_(True)]


# Where one of two changes makes a trace unfit, it must not have taken over the other one: its
# guards are compared in the order of the names of the closure.


@route
def a_tensor_replaced_and_a_flag_changed() -> Case:
    flag, weight = types.SimpleNamespace(on=True), types.SimpleNamespace(value=number(1.0))

    def change(value, on):
        weight.value, flag.on = number(value), on

    changes = [functools.partial(change, 5.0, False), *sets(flag, "on", True)]
    changes += [functools.partial(change, 7.0, False), *sets(flag, "on", True)]
    return lambda x: x * (2 if flag.on else 3) @ weight.value, changes


@route
def a_flag_changed_and_a_tensor_replaced() -> Case:
    tensor, which = types.SimpleNamespace(value=number(1.0)), types.SimpleNamespace(on=True)

    def change(value, on):
        tensor.value, which.on = number(value), on

    changes = [functools.partial(change, 5.0, False), *sets(which, "on", True)]
    changes += [functools.partial(change, 7.0, False), *sets(which, "on", True)]
    return lambda x: x @ tensor.value * (2 if which.on else 3), changes


@route
def a_gradient_that_is_there_or_not() -> Case:
    weight = nn.Parameter(number(1.0))

    def function(x):
        return x * (2 if weight.grad is None else 3)

    changes = [*sets(weight, "grad", number(2.0), None)]
    return function, changes


@route
def gradients_that_add_up() -> Case:
    weight = nn.Parameter(number(1.0))

    def function(x):
        (x @ weight).sum().backward()
        return weight.grad

    return function, [lambda: weight.grad.zero_(), *sets(weight, "grad", None, number(5.0))]


@pytest.mark.parametrize("case", route.values(), ids=route)
@pytest.mark.slow
def test_a_value_that_changed_is_seen(case):
    check_changes(case)


def test_values_of_an_equal_form_need_no_new_trace():
    model, other = linear(), linear()
    function = torch_jax.jit(lambda x: F.relu(model(x)))
    x = torch.ones(3, device="jax")
    function(x)
    model.load_state_dict(other.state_dict())
    function(x)
    model.weight = nn.Parameter(number(2.0))
    assert torch.equal(function(x).cpu(), F.relu(model(x)).cpu())
    assert function.explain().traces == 1, function.explain()


def test_training_and_evaluation_in_turn_are_two_traces():
    model = nn.Sequential(linear(), nn.Dropout(0.5), nn.BatchNorm1d(3).to("jax"))
    function = torch_jax.jit(lambda x: model(x))
    for _ in range(4):
        model.train()
        function(torch.ones(2, 3, device="jax"))
        model.eval()
        function(torch.ones(2, 3, device="jax"))
    assert function.explain().traces == 2, function.explain()
