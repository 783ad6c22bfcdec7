"""``torch.func`` under ``torch_jax.jit``: one program, and what it is given are its inputs."""

import copy

import pytest
import torch
from torch import func, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import torch_jax
from tests.support.compare import assert_same, to_jax
from tests.support.executors import by, each
from tests.support.jitted import assert_run, assert_skipped, both


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def params():
    return {"w1": draw(4, 8), "w2": draw(8, 3), "b": draw(3)}


def loss(p, x, y):
    return F.cross_entropy(torch.tanh(x @ p["w1"]) @ p["w2"] + p["b"], y)


def step(p, x, y):
    gradients = func.grad(loss)(p, x, y)
    return {name: value - 0.1 * gradients[name] for name, value in p.items()}


def after_training(p, x, y):
    return loss(step(step(p, x, y), x, y), x, y)


def hessian_times(p, x, y):
    return func.jvp(func.grad(lambda p: loss(p, x, y)), (p,), (p,))[1]


X, Y = draw(5, 4), torch.tensor([0, 1, 2, 1, 0])
CASES = {
    "gradients by example": func.vmap(func.grad(loss), (None, 0, 0)),
    "jacobian": func.vmap(func.jacrev(loss, argnums=1), (None, 0, 0)),
    "hessian": func.hessian(lambda p, x, y: loss(p, x, y), argnums=1),
    "hessian times a vector": hessian_times,
    "gradient through training": func.grad(after_training),
    "in chunks": func.vmap(func.grad(loss), (None, 0, 0), chunk_size=2),
}


SLOW = ("hessian", "in chunks", "gradient through training")


@each
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES]
)
def test_transforms_by_every_executor(name, executor):
    arguments = params(), X, Y
    same(by(executor, CASES[name])(*to_jax(arguments)), CASES[name](*arguments))


def same(actual, expected):
    """Trees of tensors of the same form, alike in all but strides."""
    (mine, form), (its, other) = map(pytree.tree_flatten, (actual, expected))
    assert form == other
    assert_same(mine, its, strides=False, scale=5)


def compiled_once(function, *calls):
    """Return the results of a pure function's calls; all of them are one program."""
    compiled = torch_jax.jit(function, pure=True)
    results = [compiled(*to_jax(call)) for call in calls]
    assert_skipped(compiled)
    return results


def test_gradients_by_example_are_one_program():
    function = func.vmap(func.grad(loss), (None, 0, 0))
    calls = [(params(), X * factor, Y) for factor in (1, 2, 3, 4)]
    for actual, call in zip(compiled_once(function, *calls), calls, strict=True):
        same(actual, function(*call))


def test_an_ensemble_is_one_program():
    models = [nn.Linear(4, 3) for _ in range(3)]
    stacked, buffers = func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def outputs(p, x):
        return func.vmap(lambda p, x: func.functional_call(base, p, (x,)), (0, None))(p, x)

    stacked = {name: value.detach() for name, value in stacked.items()}
    calls = [({name: value * n for name, value in stacked.items()}, X) for n in range(1, 4)]
    for actual, call in zip(compiled_once(outputs, *calls), calls, strict=True):
        assert_same(actual, outputs(*call), strides=False)


class Tied(nn.Module):
    """A weight that stands in two places, and a buffer that counts."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.head(self.embed(x)) * self.calls


@both
def test_parameters_of_a_functional_call_are_inputs(pure):
    model, x = Tied(), torch.tensor([0, 3, 5])
    on_jax = copy.deepcopy(model).to("jax")
    call = torch_jax.jit(lambda state, x: func.functional_call(on_jax, state, (x,)), pure=pure)
    for i in range(12):
        weight, calls = draw(6, 4) + i, torch.tensor(float(i))
        state = {"embed.weight": weight, "calls": calls}
        given = to_jax(state)
        expected = func.functional_call(model, state, (x,))
        assert_same(call(given, x.to("jax")), expected)
        same(given, state)  # the buffer that was given is written
    assert on_jax.calls.item() == 0
    assert_run(call, pure)


@both
def test_a_compiled_function_inside_a_transform(pure):
    inner = torch_jax.jit(lambda a: a.sin() * 2, pure=pure)
    x = draw(3, 4)
    for _ in range(3):
        actual = func.vmap(func.grad(lambda a: inner(a).sum()))(x.to("jax"))
        assert_same(actual, 2 * x.cos())
