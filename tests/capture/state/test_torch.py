"""Nothing goes stale under ``torch_jax.jit``: optimizers, modes, CPU tensors, generators."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.routes import Case, Routes, check_changes, puts, sets

route = Routes()


def linear() -> nn.Module:
    """One on the device, from the seed that a test has set."""
    return nn.Linear(3, 3).to("jax")


def number(value: float) -> torch.Tensor:
    return torch.full((3, 3), value, device="jax")


# --- optimizers -----------------------------------------------------------------------------------


def trained(make: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = linear()
    optimizer = make(model.parameters())

    def function(x):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        return torch.cat([model.weight.flatten(), model.bias])

    return model, optimizer, function


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1, eps=1e-2)


@route
def the_learning_rate() -> Case:
    _, optimizer, function = trained(adam)
    return function, puts(optimizer.param_groups[0], "lr", 0.5, 1, 0.01)


@route
def flags_of_an_optimizer() -> Case:
    _, optimizer, function = trained(functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9))
    group = optimizer.param_groups[0]
    return function, puts(group, "nesterov", True) + puts(group, "maximize", True)


@route
def weight_decay_that_begins() -> Case:
    _, optimizer, function = trained(functools.partial(torch.optim.SGD, lr=0.01))
    return function, puts(optimizer.param_groups[0], "weight_decay", 0.5, 0.1, 0)


@route
def momentum_that_begins() -> Case:
    _, optimizer, function = trained(functools.partial(torch.optim.SGD, lr=0.01))
    return function, puts(optimizer.param_groups[0], "momentum", 0.5, 0.9, 0)


@route
def the_state_of_an_optimizer_loaded() -> Case:
    model, optimizer, function = trained(adam)
    saved = copy.deepcopy(optimizer.state_dict())
    changes = [lambda: optimizer.load_state_dict(saved), optimizer.state.clear]

    def forget():
        optimizer.state[model.weight]["exp_avg"] = number(1.0)

    return function, [*changes, forget]


@route
def a_group_of_parameters_added() -> Case:
    model, optimizer, function = trained(lambda p: adam([[*p][0]]))
    group = {"params": [model.bias], "lr": 0.3}
    return function, [functools.partial(optimizer.add_param_group, group)]


@route
def a_parameter_of_a_group_replaced() -> Case:
    model, optimizer, function = trained(adam)

    def replace():
        model.weight = nn.Parameter(number(0.1))
        optimizer.param_groups[0]["params"][0] = model.weight

    return function, [replace]


@route
def a_hook_of_an_optimizer() -> Case:
    model, optimizer, function = trained(adam)

    def add():
        def halve(optimizer, args, kwargs):
            with torch.no_grad():
                model.bias.mul_(0.5)

        optimizer.register_step_post_hook(halve)

    return function, [add]


@route
def an_optimizer_of_the_users_own() -> Case:
    class Descent(torch.optim.Optimizer):
        strength = 1.0

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"] * self.strength)

    _, optimizer, function = trained(lambda p: Descent(p, {"lr": 0.1}))
    return function, puts(optimizer.param_groups[0], "lr", 0.01) + sets(
        optimizer, "strength", 2.0, 3.0
    )


# --- modes ----------------------------------------------------------------------------------------


@route
def grad_mode() -> Case:
    weight = nn.Parameter(number(1.0))

    def function(x):
        return (x @ weight) * (1 + (x @ weight).requires_grad)

    enable = torch.set_grad_enabled
    return function, [functools.partial(enable, False), functools.partial(enable, True)]


@route
def the_default_dtype() -> Case:
    set_to = functools.partial(torch.set_default_dtype)
    return lambda x: torch.ones(3, device="jax") + x.to(torch.float16), [
        functools.partial(set_to, torch.float64),
        functools.partial(set_to, torch.float32),
    ]


@route
def autocast_around_the_call() -> Case:
    model, contexts = linear(), []

    def enter():
        contexts.append(torch.autocast("jax", dtype=torch.bfloat16))
        contexts[-1].__enter__()

    return lambda x: model(x), [enter, lambda: contexts.pop().__exit__(None, None, None)]


# --- tensors on the CPU, generators ---------------------------------------------------------------


@route
def a_cpu_tensor_read_by_item() -> Case:
    scale = torch.tensor(2.0)
    return lambda x: x * scale.item(), [lambda: scale.fill_(3.0), lambda: scale.add_(1.0)]


@route
def a_cpu_tensor_as_a_scalar() -> Case:
    scale = torch.tensor(2.0)
    return lambda x: x * scale, [lambda: scale.fill_(3.0), lambda: scale.add_(1.0)]


@route
def a_cpu_tensor_moved_to_the_device() -> Case:
    mask = torch.tensor([1.0, 0.0, 1.0])
    return lambda x: x * mask.to("jax"), [lambda: mask.fill_(3.0), lambda: mask.add_(1.0)]


@route
def a_cpu_tensor_that_python_looks_at() -> Case:
    flag = torch.tensor([1])

    def function(x):
        if flag:
            return x * int(flag) * float(flag.sum())
        return -x

    return function, [lambda: flag.fill_(3), lambda: flag.zero_()]


@route
def a_cpu_tensor_as_a_list() -> Case:
    sizes = torch.tensor([1, 2])
    return lambda x: x.repeat(sizes.tolist())[0], [lambda: sizes.copy_(torch.tensor([3, 1]))]


@route
def a_cpu_tensor_as_numpy() -> Case:
    scale = torch.tensor([2.0])
    return lambda x: x * scale.numpy()[0].item(), [lambda: scale.fill_(3.0)]


@route
def a_cpu_tensor_replaced() -> Case:
    config = {"scale": torch.tensor(2.0)}
    return lambda x: x * config["scale"], puts(config, "scale", torch.tensor(3.0), 4.0)


@route
def a_cpu_tensor_counted_up_inside() -> Case:
    count = torch.zeros((), dtype=torch.int64)

    def function(x):
        count.add_(1)
        return x * count + count.item()

    return function, [lambda: count.fill_(7)]


@route
def an_embedding_on_the_cpu() -> Case:
    table = nn.Embedding(4, 3)
    return lambda x: x + table(torch.tensor([1])).to("jax"), [lambda: nn.init.ones_(table.weight)]


@route
def random_numbers() -> Case:
    again = functools.partial(torch.manual_seed, 1)
    return lambda x: x * torch.rand(3, device="jax"), [again, again]


@route
def random_numbers_of_the_cpu() -> Case:
    again = functools.partial(torch.manual_seed, 1)
    return lambda x: x * torch.rand(3).to("jax"), [again, again]


@route
def random_numbers_of_a_generator() -> Case:
    generator = torch.Generator("jax").manual_seed(0)
    again = functools.partial(generator.manual_seed, 5)
    return lambda x: x * torch.rand(3, device="jax", generator=generator), [again, again]


@route
def random_numbers_of_a_generator_on_the_cpu() -> Case:
    generator = torch.Generator().manual_seed(0)
    again = functools.partial(generator.manual_seed, 5)
    return lambda x: x * torch.rand(3, generator=generator).to("jax"), [again, again]


@route
def a_generator_replaced() -> Case:
    config = {"generator": torch.Generator("jax").manual_seed(0)}
    other = torch.Generator("jax").manual_seed(9)
    function = lambda x: x * torch.rand(3, device="jax", generator=config["generator"])  # noqa: E731
    return function, puts(config, "generator", other)


@route
def the_state_of_a_generator() -> Case:
    state = torch.jax.get_rng_state()
    set_back = functools.partial(torch.jax.set_rng_state, state)
    return lambda x: x * torch.rand(3, device="jax"), [set_back, set_back]


@pytest.mark.parametrize("case", route.values(), ids=route)
@pytest.mark.slow
def test_a_value_that_changed_is_seen(case):
    check_changes(case)


def moved_on_the_device() -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.arange(8.0, device="jax")
    return memory, memory[:4]


def moved_on_the_cpu() -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.arange(8.0)
    return memory, memory[:4]


def every_second_element() -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.arange(8.0, device="jax")
    return memory, memory[::2]


@pytest.mark.parametrize("make", [moved_on_the_device, moved_on_the_cpu, every_second_element])
def test_a_tensor_that_shows_another_part_of_its_memory(make):
    memory, part = make()
    function = torch_jax.jit(lambda x: x * part.to("jax"), fallback="error")
    one = torch.ones(4, device="jax")
    for offset in (0, 0, 1, 1, 0):
        part.data = memory.as_strided((4,), part.stride(), offset)
        assert torch.equal(function(one).cpu(), part.cpu())
    for offset in (1, 1, 0):
        part.set_(memory.untyped_storage(), offset, (4,), part.stride())
        assert torch.equal(function(one).cpu(), part.cpu())


def test_a_seed_inside_gives_the_same_numbers_at_each_call():
    @torch_jax.jit
    def function(x):
        torch.manual_seed(3)
        return x * torch.rand(3, device="jax"), torch.rand(3)

    ones = torch.ones(3, device="jax")
    first, second = function(ones), function(ones)
    assert torch.equal(first[0].cpu(), second[0].cpu())
    assert torch.equal(first[1], second[1])
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3, device="jax").cpu(), first[0].cpu())


def test_deterministic_algorithms_are_asked_for_at_each_call():
    function = torch_jax.jit(
        lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3)
    )
    ones = torch.ones(3, device="jax")
    assert function(ones).tolist() == [3, 3, 3]
    torch.use_deterministic_algorithms(True)
    try:
        assert function(ones).tolist() == [2, 2, 2]
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_default_device_is_looked_at():
    function = torch_jax.jit(lambda: torch.ones(3) + 1)
    with torch.device("jax"):
        assert function().device.type == "jax"
    assert function().device.type == "cpu"
