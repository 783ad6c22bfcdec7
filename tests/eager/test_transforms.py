"""``torch.func``, forward-mode AD, checkpointing, hooks and higher derivatives, as on the CPU."""

import copy

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import func
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.support.compare import assert_same, check


def make(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def cube(x):
    return (x**3).sum()


TRANSFORMS = {
    "vmap": lambda x: func.vmap(lambda a: a.sin() * a.sum())(x),
    "vmap of matmul": lambda x: func.vmap(lambda a: torch.outer(a, a) @ a)(x),
    "vmap in chunks": lambda x: func.vmap(torch.sum, chunk_size=2)(x),
    "vmap of softmax": lambda x: func.vmap(lambda a: F.softmax(a, -1), in_dims=1, out_dims=1)(x),
    "grad": lambda x: func.grad(cube)(x),
    "grad_and_value": lambda x: func.grad_and_value(cube)(x),
    "vjp": lambda x: func.vjp(torch.sin, x)[1](x),
    "jvp": lambda x: func.jvp(torch.sin, (x,), (x,)),
    "jacrev": lambda x: func.jacrev(torch.sin)(x),
    "jacfwd": lambda x: func.jacfwd(torch.sin)(x),
    "hessian": lambda x: func.hessian(cube)(x),
    "linearize": lambda x: func.linearize(torch.sin, x)[1](x),
    "gradients by example": lambda x: func.vmap(func.grad(cube))(x),
    "hvp": lambda x: torch.autograd.functional.hvp(cube, x, x),
    "jacobian": lambda x: torch.autograd.functional.jacobian(torch.tanh, x),
    "functionalize": lambda x: func.functionalize(lambda a: a.clone().mul_(2).t())(x),
}


@pytest.mark.parametrize("function", TRANSFORMS.values(), ids=TRANSFORMS)
def test_function_transforms(function):
    check(function, make(3, 4), strides=False)


def test_functional_call_and_a_vmapped_ensemble():
    def outputs(device):
        torch.manual_seed(0)
        models = [torch.nn.Linear(4, 2).to(device) for _ in range(3)]
        x = make(5, 4).to(device)
        params, buffers = func.stack_module_state(models)
        base = copy.deepcopy(models[0]).to("meta")
        run = func.vmap(lambda p, b: func.functional_call(base, (p, b), (x,)))
        loss = lambda p, x: func.functional_call(models[0], p, (x,)).square().sum()  # noqa: E731
        by_example = func.vmap(func.grad(loss), in_dims=(None, 0))
        named = {k: v.detach() for k, v in models[0].named_parameters()}
        return run(params, buffers), [*by_example(named, x).values()]

    assert_same(outputs("jax"), outputs("cpu"), strides=False)


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_under_vmap(randomness):
    x = torch.ones(3, 64, device="jax")
    y = func.vmap(lambda a: F.dropout(a, 0.5), randomness=randomness)(x).cpu()
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(y[0], y[1]) == (randomness == "same")


def test_forward_mode_with_dual_numbers():
    def tangent(x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual(F.gelu(dual @ dual.t()).sum()).tangent

    check(tangent, make(3, 4))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_replays_the_same_dropout(use_reentrant):
    kept = []

    def block(x):
        y = F.dropout(x, 0.5)
        kept.append((y != 0).cpu())
        return y.sin()

    x = torch.ones(64, device="jax", requires_grad=True)
    checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
    assert len(kept) == 2 and torch.equal(*kept)
    assert torch.equal(x.grad.cpu() != 0, kept[0])


@pytest.mark.slow
def test_double_backward_of_a_small_network():
    def second(x, w):
        loss = (torch.tanh(x @ w) ** 2).mean()
        first = torch.autograd.grad(loss, (x, w), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, w))

    check(second, make(3, 4).requires_grad_(), make(4, 2).requires_grad_(), grad=False)


def test_hooks_of_tensors_modules_and_nodes_run_in_order():
    def seen(device):
        log = []
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).to(device)
        torch.nn.init.ones_(model[0].weight), torch.nn.init.zeros_(model[0].bias)
        model[0].register_forward_hook(lambda m, i, o: log.append(("forward", o.detach().cpu())))
        model.register_full_backward_hook(lambda m, i, o: log.append(("module", o[0].cpu())))
        model[0].weight.register_post_accumulate_grad_hook(
            lambda p: log.append(("accumulated", p.grad.cpu()))
        )
        x = make(2, 4).to(device).requires_grad_()
        x.register_hook(lambda g: log.append(("tensor", g.cpu())))
        y = model(x)
        y.grad_fn.register_prehook(lambda g: log.append(("node", g[0].cpu())))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(device)):
            y.square().sum().backward()
        return log

    actual, expected = seen("jax"), seen("cpu")
    assert [name for name, _ in actual] == [name for name, _ in expected]
    for (_, one), (_, other) in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)
