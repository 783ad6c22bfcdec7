"""Hooks, inference mode, reparametrized and lazy modules: as on the CPU, moved, and compiled."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrizations, parametrize

import torch_jax
from tests.support.models import is_tied, tied
from tests.support.values import DEVICES

# --- hooks ----------------------------------------------------------------------------------------


def _hooked(model: nn.Module, told: list[Any]) -> None:
    """Hooks of every kind, each of which tells what it sees."""

    def tell(name: str) -> Callable[..., None]:
        def hook(*values: Any) -> None:
            tensors = [t for v in values[1:] for t in (v if isinstance(v, tuple) else (v,))]
            shown = [t.sum().item() for t in tensors if isinstance(t, torch.Tensor)]
            told.append((name, *shown))

        return hook

    layer, weight = model[0], model[0].weight
    layer.register_forward_pre_hook(tell("forward pre"))
    layer.register_forward_hook(tell("forward"))
    layer.register_full_backward_pre_hook(tell("backward pre"))
    layer.register_full_backward_hook(tell("backward"))
    weight.register_hook(lambda g: told.append(("tensor", g.sum().item())))
    weight.register_post_accumulate_grad_hook(lambda p: told.append(("post", p.grad.sum().item())))
    layer.register_state_dict_post_hook(lambda m, s, *a: told.append(("state dict", len(s))))
    layer.register_load_state_dict_pre_hook(lambda m, s, *a: told.append(("loading", len(s))))
    layer.register_load_state_dict_post_hook(lambda *a: told.append(("loaded",)))


def test_hooks_of_every_kind_see_the_same():
    results = []
    for device in DEVICES:
        told: list[Any] = []
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
        _hooked(model, told)
        x = torch.ones(2, 3, device=device, requires_grad=True)
        y = model(x)
        y.register_hook(lambda g: g * 3)
        y.retain_grad()
        y.sum().backward()
        model.load_state_dict(model.state_dict())
        told += [("x", x.grad.sum().item()), ("y", y.grad.sum().item())]
        results.append(told)
    assert [t[0] for t in results[0]] == [t[0] for t in results[1]]
    for ours, theirs in zip(results[1], results[0], strict=True):
        assert ours[1:] == pytest.approx(theirs[1:], rel=1e-4)


def test_hooks_stay_when_a_model_is_moved():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    told: list[Any] = []
    _hooked(model, told)
    model.to("jax")
    model(torch.ones(2, 3, device="jax", requires_grad=True)).sum().backward()
    model.cpu()
    names = [t[0] for t in told]
    told.clear()
    model(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert [t[0] for t in told] == names
    assert {"forward pre", "forward", "backward pre", "backward"} <= set(names)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* was traced 5 times")
def test_hooks_of_a_compiled_module_come_and_go():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to("jax")
    compiled = torch_jax.jit(copy.deepcopy(plain))
    handles: list[Any] = []
    changes: list[Callable[[nn.Module], Any]] = [
        lambda m: m.register_forward_hook(lambda m, a, y: y * 2),
        lambda m: m[0].register_forward_hook(lambda m, a, y: y + 1),
        lambda m: m.register_forward_pre_hook(lambda m, a: (a[0] * 3,)),
        lambda m: m[1].register_forward_pre_hook(
            lambda m, a, k: ((a[0] - 1,), k), with_kwargs=True
        ),
        lambda m: nn.modules.module.register_module_forward_hook(lambda m, a, y: y * 1.5),
    ]
    x = torch.ones(2, 3, device="jax")

    def check() -> list[float]:
        theirs, ours = (m(x).detach().cpu() for m in (plain, compiled))
        torch.testing.assert_close(ours, theirs)
        return theirs.flatten().tolist()

    seen = [check()]
    for change in changes:
        shared = change is changes[-1]
        handles += [change(m) for m in ((plain,) if shared else (plain, compiled))]
        seen += [check(), check()]
        assert seen[-1] == seen[-2] != seen[-3]
    for handle in handles:
        handle.remove()
    assert check() == seen[0]


def test_inference_mode_and_hooks_inside_it():
    results = []
    for device in DEVICES:
        told: list[Any] = []
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        model.register_forward_hook(lambda m, a, y, told=told: told.append(y.is_inference()))
        with torch.inference_mode():
            y = model(torch.ones(1, 3, device=device))
            y.add_(1)
            z = torch.zeros(2, device=device)
            z[0] = 5
        assert y.is_inference() and not y.requires_grad
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            (model.bias * z).sum().backward()
        with pytest.raises(RuntimeError, match="outside InferenceMode"):
            y.add_(1)
        with pytest.raises(RuntimeError, match="version counter"):
            y._version  # noqa: B018
        results.append((told, y.tolist(), (y.clone() + 1).tolist()))
    assert results[0][0] == results[1][0] == [True]
    assert results[1][1] == [pytest.approx(results[0][1][0], rel=1e-5)]
    compiled = torch_jax.jit(model)
    with torch.inference_mode():
        inside = compiled(torch.ones(1, 3, device="jax"))
    assert inside.is_inference()
    outside = compiled(torch.ones(1, 3, device="jax"))
    assert outside.requires_grad and not outside.is_inference()
    torch.testing.assert_close(inside.cpu(), outside.detach().cpu())


@pytest.mark.parametrize("move", [nn.Module.to, lambda layer, device: _assign(layer, device)])
def test_hooks_of_parameters_stay_where_a_module_moves(move):
    layer, seen = nn.Linear(2, 1), []
    handles = [
        layer.weight.register_hook(lambda g: g * 2),
        layer.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.device.type)),
    ]
    for device in ("jax", "cpu", "jax"):
        move(layer, device)
        layer.zero_grad()
        layer(torch.ones(1, 2, device=device)).sum().backward()
        assert layer.weight.grad.tolist() == [[2, 2]]
    assert seen == ["jax", "cpu", "jax"]
    for handle in handles:
        handle.remove()
    layer.zero_grad()
    layer(torch.ones(1, 2, device="jax")).sum().backward()
    assert layer.weight.grad.tolist() == [[1, 1]] and len(seen) == 3


def _assign(layer: nn.Module, device: str) -> None:
    for parameter in layer.parameters():
        parameter.data = parameter.data.to(device)


class _Failed(BaseException):
    """Neither an error of PyTorch's nor an ``Exception``."""


def _fail(*_values: Any) -> Any:
    raise _Failed("of a hook")


def _unpack_fails(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, _fail):
        return x * x


def _again_fails(x: torch.Tensor, reentrant: bool) -> torch.Tensor:
    def function(x):
        y = x * 2
        if y.requires_grad:
            y.register_hook(_fail)
        return y

    return torch.utils.checkpoint.checkpoint(function, x, use_reentrant=reentrant)


def _with(x: torch.Tensor, register: Callable[[torch.Tensor, torch.Tensor], Any]) -> torch.Tensor:
    y = x * 2
    register(x, y)
    return y


FAILING = {
    "of a leaf": lambda x: _with(x, lambda x, y: x.register_hook(_fail)),
    "of a result": lambda x: _with(x, lambda x, y: y.register_hook(_fail)),
    "after a node": lambda x: _with(x, lambda x, y: y.grad_fn.register_hook(_fail)),
    "before a node": lambda x: _with(x, lambda x, y: y.grad_fn.register_prehook(_fail)),
    "after accumulation": lambda x: _with(
        x, lambda x, y: x.register_post_accumulate_grad_hook(_fail)
    ),
    "unpacking": _unpack_fails,
    "checkpointed": lambda x: _again_fails(x, False),
    "checkpointed, reentrant": lambda x: _again_fails(x, True),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_error_of_a_hook_reaches_the_caller_of_backward(name):
    for device in DEVICES:
        x = torch.ones(3, device=device, requires_grad=True)
        with pytest.raises(_Failed, match="of a hook"):
            FAILING[name](x).sum().backward()
        y = torch.ones(3, device=device, requires_grad=True)
        (y * y).sum().backward()
        assert y.grad.tolist() == [2, 2, 2]


def test_the_graph_of_a_hook_that_failed_goes_with_its_tensors():
    gc.disable()
    try:
        for device in DEVICES:
            x = torch.ones(3, device=device, requires_grad=True)
            result = (x * 2).sum()
            result.register_hook(_fail)
            left = weakref.ref(result)
            with contextlib.suppress(_Failed):
                result.backward()
            del result
            assert left() is None, device
    finally:
        gc.enable()


def test_what_a_hook_must_not_return():
    for device in DEVICES:
        x = torch.ones(3, device=device, requires_grad=True)
        x.register_hook(lambda gradient: "no tensor")
        with pytest.raises(TypeError, match="hook returned 'str'"):
            (x * 2).sum().backward()


def test_hooks_that_fail_in_several_threads_at_once():
    def fail(number: int) -> None:
        x = torch.ones(3, device="jax", requires_grad=True)

        def hook(gradient: torch.Tensor) -> None:
            raise ValueError(number)

        x.register_hook(hook)
        with pytest.raises(ValueError, match=f"^{number}$"):
            (x * 2).sum().backward()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fail, range(40)))


def test_hooks_run_on_the_thread_that_calls_backward():
    def is_here() -> list[bool]:
        seen, x = [], torch.ones(3, device="jax", requires_grad=True)
        x.register_hook(lambda _: seen.append(threading.get_ident()))
        (x * 2).sum().backward()
        return [ident == threading.get_ident() for ident in seen]

    with ThreadPoolExecutor(1) as pool:
        assert (is_here(), pool.submit(is_here).result()) == ([True], [True])
    with torch.inference_mode(False):  # which turns autograd's threads on
        assert is_here() == [True]


# --- reparametrized -------------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x):
        return x.triu()


def _symmetric(layer):
    return parametrize.register_parametrization(layer, "weight", Symmetric())


def _old_weight_norm(layer):
    return nn.utils.weight_norm(layer)


def _old_spectral_norm(layer):
    return nn.utils.spectral_norm(layer)


REPARAMETRIZE = [
    _symmetric,
    parametrizations.weight_norm,
    parametrizations.spectral_norm,
    functools.partial(parametrizations.orthogonal, orthogonal_map="cayley"),
    _old_weight_norm,
    _old_spectral_norm,
]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("change", REPARAMETRIZE)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.slow
def test_reparametrized_layers_train_and_move(change, late):
    """Reparametrized on the CPU and moved, or (``late``) on the device."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    if late:
        moved = copy.deepcopy(layer).to("jax")
        torch.manual_seed(1)
        expected = change(layer)
        if "spectral" in str(change):  # begins with random vectors: those of the CPU
            moved = copy.deepcopy(expected).to("jax")
        else:
            moved = change(moved)
    else:
        torch.manual_seed(1)
        expected = change(layer)
        moved = change(copy.deepcopy(nn.Linear(4, 4)))
        moved.load_state_dict(expected.state_dict())
        identity = dict(moved.named_parameters())
        moved.to("jax")
        assert all(p is identity[n] for n, p in moved.named_parameters())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (expected, moved)]
    compiled = torch_jax.jit(lambda x: moved(x))
    x = torch.randn(3, 4)
    for step in range(3):
        run = compiled if step == 2 else moved
        losses = [expected(x).square().sum(), run(x.to("jax")).square().sum()]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-4)
    for ours, theirs in zip(moved.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-4)
    moved.cpu()
    torch.testing.assert_close(moved.eval()(x), expected.eval()(x), rtol=1e-4, atol=1e-4)


def test_swapping_tensors():
    results = []
    for device in DEVICES:
        one = nn.Parameter(torch.ones(2, device=device))
        other = nn.Parameter(torch.arange(3.0, device=device))
        one.note, other.grad = "one", torch.full((3,), 5.0, device=device)
        names = id(one), id(other)
        torch.utils.swap_tensors(one, other)
        assert (id(one), id(other)) == names and other.note == "one"
        (one * 2).sum().backward()
        results.append((one.tolist(), other.tolist(), one.grad.tolist(), other.grad))
    assert results[0] == results[1]
    inside, outside = torch.ones(2, device="jax"), torch.zeros(3)
    torch.utils.swap_tensors(inside, outside)
    assert outside.is_jax and outside.tolist() == [1.0, 1.0] and inside.device.type == "cpu"
    assert (outside + 1).tolist() == [2.0, 2.0] and (inside + 1).tolist() == [1.0] * 3


def test_modules_swap_their_parameters_where_pytorch_is_told_to():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model = tied()
        weight = model.head.weight
        model.to("jax")
        assert model.head.weight is weight is model.embed.weight and weight.is_jax
        model.load_state_dict(tied(1).state_dict())
        model.to("cpu")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert is_tied(model) and torch.equal(model.head.weight, tied(1).head.weight)


@pytest.mark.parametrize("eagerly", ["torch", "xla"])
@pytest.mark.parametrize("source, target", [("jax", "jax"), ("cpu", "jax"), ("jax", "cpu")])
def test_lazy_modules_without_shapes_are_loaded(eagerly, source, target):
    given, model = nn.LazyLinear(4).to(source), nn.LazyLinear(4).to(target)
    with torch_jax.config.temporarily("eager_on_cpu", eagerly):
        model.load_state_dict(given.state_dict())
        assert is_lazy(model.weight)
        assert model(torch.ones(2, 3, device=target)).shape == (2, 4)


@pytest.mark.slow
def test_lazy_modules_are_made_where_they_are():
    results = []
    for device in DEVICES:
        model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()).to(device)
        optimizer = None
        torch.manual_seed(0)
        with torch.no_grad():
            model(torch.ones(3, 5, device=device))
            for parameter in model.parameters():
                parameter.fill_(0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.arange(15.0, device=device).view(3, 5)).square().sum().backward()
        optimizer.step()
        results.append([p.detach().cpu() for p in model.parameters()])
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_backward_pass_on_another_accelerator_is_explained():
    def fail(gradient):  # as PyTorch's engine fails on a GPU
        raise RuntimeError("opt_ready_stream && opt_parent_stream INTERNAL ASSERT FAILED")

    torch.ones(1, device="jax")
    x = torch.ones(2, requires_grad=True)
    x.register_hook(fail)
    with pytest.raises(RuntimeError, match="one accelerator in a process"):
        (x * 2).sum().backward()
