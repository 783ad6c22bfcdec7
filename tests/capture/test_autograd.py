"""Gradients inside of functions under ``torch_jax.jit``, and through their results outside."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import func, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_jax
from tests.support.compare import assert_same
from tests.support.jitted import assert_skipped, both
from tests.support.values import ones, randn
from torch_jax.core import compilations
from torch_jax.eager import kernel


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to("jax")


# --- inside ---------------------------------------------------------------------------------------


def inputs(model, x):
    x = x.detach().requires_grad_()
    model(x).square().sum().backward(inputs=[x])
    return x.grad


def unused(model, x):
    wanted = [*model[2].parameters(), nn.Parameter(torch.ones(1, device="jax"))]
    return torch.autograd.grad(model(x).sum(), wanted, allow_unused=True)


def twice(model, x):
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()


def by_example(model, x):
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p, row):
        return func.functional_call(model, p, (row,)).square().sum()

    return func.vmap(func.grad(loss), (None, 0))(parameters, x)


def a_gradient_of_a_gradient(model, x):
    """The gradient penalty of Wasserstein GANs."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (gradient.norm(dim=1) - 1).square().mean().backward()


def one_through_a_checkpoint(model, x):
    a_gradient_of_a_gradient(lambda x: checkpoint(model, x, use_reentrant=False), x)


INSIDE = [
    inputs, unused, twice, by_example, a_gradient_of_a_gradient, one_through_a_checkpoint,
]  # fmt: skip


@pytest.mark.parametrize("way", INSIDE, ids=lambda way: way.__name__)
def test_inside(way, agree):
    def program(compile):
        model = network()

        def function(x):
            model.zero_grad()
            return way(model, x), [p.grad for p in model.parameters()]

        function = compile(function)
        for value in range(1, 5):
            yield function(torch.arange(6.0, device="jax").view(2, 3) * value / 10)

    agree(program)


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


def test_parameters_of_a_functional_call_are_inputs(agree):
    def program(compile):
        model, x = Tied().to("jax"), torch.tensor([0, 3, 5]).to("jax")
        call = compile(lambda state, x: func.functional_call(model, state, (x,)))
        for i in range(12):
            state = {"embed.weight": randn(6, 4) + i, "calls": torch.tensor(float(i)).to("jax")}
            yield call(state, x), state, model.calls  # the buffer that was given is written

    agree(program)


@both
def test_a_compiled_function_inside_a_transform(pure):
    inner, x = torch_jax.jit(lambda a: a.sin() * 2, pure=pure), torch.randn(3, 4)
    for _ in range(3):
        actual = func.vmap(func.grad(lambda a: inner(a).sum()))(x.to("jax"))
        assert_same(actual, 2 * x.cos())


# --- outside --------------------------------------------------------------------------------------


def losses_that_are_summed(compile):
    model, zeros, x = network(), torch.zeros(2, 1, device="jax"), ones(2, 3)
    loss = compile(lambda x: F.mse_loss(model(x), zeros))
    for _ in range(3):
        (loss(x) + loss(x * 2) * 3).backward()
        yield list(model.parameters())


def a_graph_that_is_kept_and_gone_through_twice(compile):
    model = network()
    forward = compile(lambda x: model(x).square().sum())
    for _ in range(3):
        loss = forward(ones(2, 3))
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        yield list(model.parameters())


def a_part_of_the_results(compile):
    """Gradients flow from some results only, and to arguments that were computed before."""
    model = network()
    forward = compile(lambda x: (model(x).sum(), None, model[0](x), x * 2))
    for at in (0, 2, 3, 0, 2):
        x = (ones(2, 3) * (at + 1)).requires_grad_()
        forward(x.sin() * 2)[at].sum().backward()
        yield x.grad, list(model.parameters())


def inputs_and_parameters(compile):
    model = network()
    forward = compile(model)
    for value in range(3):
        model.zero_grad()
        x = (ones(2, 3) * value).requires_grad_()
        forward(x).square().sum().backward()
        yield x.grad, list(model.parameters())


def parameters_and_an_input_with_hooks(compile):
    model = network()
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    forward = compile(model)
    for value in range(5):
        model.zero_grad()
        x = (ones(2, 3) * value).requires_grad_()
        x.register_hook(lambda gradient: gradient * 3)
        forward(x).square().sum().backward()
        yield x.grad, list(model.parameters())


def indices_that_a_checkpoint_computes_again(compile):
    """The backward pass of a pure function is recorded, and not run: no index can be looked at."""
    table, weight = nn.Embedding(5, 3).to("jax"), ones(3, 3).requires_grad_()
    layers = compile(
        lambda i: checkpoint(lambda i: (table(i * 1) @ weight).sin(), i, use_reentrant=False)
    )
    for number in range(4):
        y = layers((torch.tensor([1, 2, 4]).to("jax") + number) % 5)
        scale = torch.arange(9.0, device="jax").view(3, 3)
        yield torch.autograd.grad((y * scale).sum(), (table.weight, weight))


OUTSIDE = [
    losses_that_are_summed, a_graph_that_is_kept_and_gone_through_twice, a_part_of_the_results,
    inputs_and_parameters, parameters_and_an_input_with_hooks,
    indices_that_a_checkpoint_computes_again,
]  # fmt: skip


@pytest.mark.parametrize("program", OUTSIDE, ids=lambda program: program.__name__)
def test_outside(program, agree):
    agree(program, kinds=range(1, 3))  # with gradients that are there, or without


@both
@pytest.mark.parametrize("written", ["parameter", "result"])
def test_what_is_written_before_the_backward_call_is_found_out(written, pure):
    model = network()
    forward = torch_jax.jit(lambda x: model(x).exp(), pure=pure)
    for _ in range(3):
        result = forward(ones(2, 3))
    with torch.no_grad():
        (model[2].weight if written == "parameter" else result).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@both
@pytest.mark.parametrize("written", ["argument", "captured"])
def test_a_factor_that_is_written_before_the_backward_call_is_found_out(written, pure):
    weight, factors = ones(3).requires_grad_(), {"argument": ones(3), "captured": ones(3)}
    forward = torch_jax.jit(lambda x: (weight * x + weight * factors["captured"]).sum(), pure=pure)
    for _ in range(3):
        result = forward(factors["argument"])
    factors[written].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


@both
def test_gradients_of_gradients_outside(pure):
    """The backward pass of a call without Python is a program, of which there is no graph."""
    x = torch.tensor([1.0, 2.0], device="jax", requires_grad=True)
    cube = torch_jax.jit(lambda x: (x**3).sum(), pure=pure)
    for _ in range(3):
        (first,) = torch.autograd.grad(cube(x), x, create_graph=True)
        if pure:  # from the first call on: it returns what later calls return
            with pytest.raises(RuntimeError, match="once_differentiable|does not require grad"):
                torch.autograd.grad(first.sum(), x)
        else:
            assert_same(torch.autograd.grad(first.sum(), x)[0], torch.tensor([6.0, 12.0]))


class Counted(torch.autograd.Function):
    """Counts its backward passes in a tensor, and doubles what it is given."""

    @staticmethod
    def forward(ctx, x, passes):
        ctx.passes = passes
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        ctx.passes.add_(1)
        return 2 * gradient, None


@pytest.mark.parametrize("is_met_before", [False, True])
def test_a_backward_pass_that_writes_writes_once(is_met_before):
    shown = []
    for device, wrap in (("cpu", lambda function: function), ("jax", torch_jax.jit(pure=True))):
        passes, seen = torch.zeros(1, device=device), []

        def function(x, passes=passes):
            scale = passes + 1 if is_met_before else 3.0
            return (Counted.apply(x, passes) * scale).sum()

        call = wrap(function)
        for k in range(4):
            x = torch.tensor([1.0, k], device=device, requires_grad=True)
            with (
                pytest.warns(UserWarning, match="its backward pass, which its caller runs, writes")
                if device == "jax" and not k
                else nullcontext()
            ):
                loss = call(x)
            seen.append((loss.item(), passes.item()))
            loss.backward()
            seen.append((x.grad.tolist(), passes.item()))
        shown.append(seen)
    assert shown[1] == shown[0]


def test_a_backward_pass_that_cannot_be_recorded_runs_for_the_caller():
    """A reentrant checkpoint refuses to be asked for gradients of inputs."""
    w = nn.Parameter(ones(3))
    compiled = torch_jax.jit(
        lambda x: checkpoint(lambda z: (z * w).sin(), x * w, use_reentrant=True), pure=True
    )
    for call in range(4):
        w.grad = None
        with (
            pytest.warns(UserWarning, match="cannot skip its Python: its backward pass raises")
            if not call
            else nullcontext()
        ):
            result = compiled(ones(3))
        result.sum().backward()
        assert_same(w.grad, 2 * torch.cos(torch.ones(3)))


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is scaled by a CPU tensor."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale.to("jax"), None


@pytest.mark.parametrize("is_argument", [False, True])
def test_a_backward_pass_reads_a_cpu_tensor_when_it_runs(is_argument):
    outer = torch.ones(2, device="cpu")
    compiled = torch_jax.jit(
        lambda x, scale: _Scaled.apply(x, scale if is_argument else outer), pure=True
    )
    for call in range(4):
        x, scale = ones(2).requires_grad_(), outer.clone() if is_argument else outer
        loss = compiled(x, scale).sum()
        scale.fill_(call)
        loss.backward()
        assert_same(x.grad, torch.full((2,), float(call)))


@pytest.mark.parametrize(
    "compile",
    [lambda f: torch_jax.jit(f, pure=True), lambda f: torch.compile(f, backend="jax")],
    ids=["pure", "graph"],
)
def test_gradients_in_a_batch(compile):
    """``is_grads_batched`` gives the backward pass tensors without memory."""
    model, host = network(), network().cpu()
    compiled, x = compile(lambda x: (model(x), x * x)), randn(2, 3).requires_grad_()
    given, seeds = x.detach().cpu().requires_grad_(), (randn(5, 2, 1), randn(5, 2, 3))
    outputs, wanted = (host(given), given * given), (given, *host.parameters())
    on_host = [seed.cpu() for seed in seeds]
    expected = torch.autograd.grad(outputs, wanted, on_host, is_grads_batched=True)
    for _ in range(3):
        outputs, wanted = compiled(x), (x, *model.parameters())
        found = torch.autograd.grad(outputs, wanted, seeds, is_grads_batched=True)
        assert_same(found, expected)


def test_audits_of_a_model_in_a_loop_compile_nothing():
    model, x = torch_jax.jit(network(), pure=True), randn(2, 3)
    for _ in range(2):
        model(x).sum().backward()
    before = compilations.here()
    for _ in range(7):  # two audits
        model(x).sum().backward()
    assert compilations.here().minus(before) == compilations.NOTHING
    assert_skipped(model)


@both
@pytest.mark.usefixtures("eager_by_xla")
def test_operators_behind_a_model_are_compiled_once(pure, monkeypatch):
    """They meet gradients that a recorded backward pass has left."""
    model, x, compiled = torch_jax.jit(network(), pure=pure), randn(2, 3), []
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(6):
        if step == 3:
            monkeypatch.setattr(kernel, "compile_listeners", [compiled.append])
        optimizer.zero_grad()
        F.mse_loss(model(x), x[:, :1]).backward()
        optimizer.step()
    assert not compiled
