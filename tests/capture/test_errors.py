"""Errors within functions under ``torch_jax.jit``, and values that no pure function may look at."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import distributions as D
from torch import nn

import torch_jax
from tests.support.compare import assert_same
from tests.support.jitted import both
from tests.support.steps import step_of
from tests.support.values import ones
from torch_jax import DataDependentError, NotTraceableError, config

pure = torch_jax.jit(pure=True)

VALUES = {
    "item": (lambda x: x * x.sum().item(), "torch.where"),
    "tolist": (lambda x: x.tolist(), "return it"),
    "cpu": (lambda x: x.cpu(), "return it"),
    "if": (lambda x: x if x.sum() > 0 else -x, "torch.where"),
    "index": (lambda x: [1, 2, 3, 4][x.sum().long()], "return it"),
    "format": (lambda x: f"{x.sum():.3f}", "return it"),
}


@pytest.mark.parametrize("function, advice", VALUES.values(), ids=VALUES)
def test_a_value_that_is_looked_at_is_an_error_with_the_line(function, advice):
    jitted = pure(lambda x: function(x))
    for _ in range(2):
        with pytest.raises(DataDependentError, match="Drop pure=True") as caught:
            jitted(ones())
        assert __file__ in str(caught.value) and advice in str(caught.value)


class Lazily:
    """A function in a block of lazy mode."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        with torch_jax.lazy():
            return self.function(*args)


@pytest.mark.parametrize("compiled", [torch_jax.jit, pure, Lazily])
def test_distributions_are_checked_in_programs(compiled, monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # Dynamo says no

    def density(scale, x):
        return torch.distributions.Exponential(scale).log_prob(x)

    run, good = compiled(density), ones(3)
    for _ in range(4):
        assert_same(run(good, good), density(good.cpu(), good.cpu()))
    for given, sentence in (((-good, good), "parameter rate "), ((good, -good), "value argument")):
        with pytest.raises(ValueError, match=f"{sentence}.* shape .3,."):
            run(*given).cpu()
    assert_same(run(good, good), density(good.cpu(), good.cpu()))
    with torch_jax.config.temporarily("check_indices", "always"):
        kind = torch_jax.jit(lambda x: density(-x, x))
        with pytest.raises(ValueError, match="found invalid values"):
            kind(good)


CHECKED = {  # a density, arguments that it refuses, and the part of the error
    "bounds": (
        lambda n, x: D.Independent(D.Binomial(n, probs=n / 4), 1).log_prob(x),
        lambda x: (x, x * 2),
        "value .*IntegerInterval.lower_bound=0, upper_bound=Tensor of shape .3,..",
    ),
    "matrices": (
        lambda n, x: D.MultivariateNormal(x, torch.diag(n)).log_prob(x * 2),
        lambda x: (-x, x),
        "parameter covariance_matrix .*PositiveDefinite..",
    ),
}


@pytest.mark.filterwarnings("error:.*cannot skip its Python")
@pytest.mark.parametrize("density, refused, sentence", CHECKED.values(), ids=CHECKED)
def test_checks_of_distributions_look_at_no_value(density, refused, sentence, monkeypatch):
    monkeypatch.setattr(D.Distribution, "_validate_args", True)
    run, x = pure(lambda *given: density(*given)), ones(3)
    for _ in range(3):
        assert_same(run(x, x), density(x.cpu(), x.cpu()))
    with pytest.raises(ValueError, match=sentence):
        run(*refused(x)).cpu()


@torch.jit.script
def _decides(x):
    return x if bool(x.sum() > 0) else -x


def test_a_value_that_torchscript_looks_at_is_the_same_error():
    with pytest.raises(DataDependentError, match="Drop pure=True"):
        pure(lambda x: _decides(x))(ones())


@pytest.mark.parametrize(
    "function", [lambda x: x[x > 0], lambda x: x.nonzero(), torch.unique, lambda x: str(x)]
)
def test_operators_that_look_at_values_run_their_python(function):
    jitted = pure(lambda x: function(x))
    with pytest.warns(UserWarning, match="looks? at a value|is looked at"):
        jitted(ones())
    for x in ([1.0, 0.0], [0.0, 0.0]):
        ours, theirs = jitted(torch.tensor(x, device="jax")), function(torch.tensor(x))
        assert "device" in ours if isinstance(ours, str) else torch.equal(ours.cpu(), theirs)


@torch.library.custom_op("torch_jax_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """A kernel in Python, which looks at values."""
    return x * (2 if x.sum().item() > 0 else 3)


@both
def test_a_custom_operator_with_a_python_kernel(pure):
    function = torch_jax.jit(lambda x: doubled(x + 1) - 1, pure=pure)
    with pytest.warns(UserWarning, match="is looked at") if pure else nullcontext():
        function(ones())
    for value in (1.0, -3.0, 2.0):
        x = torch.full((3,), value)
        assert_same(function(x.to("jax")), doubled(x + 1) - 1)


def test_a_step_that_fails_leaves_what_it_has_done_until_then():
    weight = nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=1.0)
    step = step_of(nn.Identity(), optimizer)
    with pytest.raises(DataDependentError):
        pure(lambda: step(weight).item())()
    assert weight.tolist() == pytest.approx([1 / 3] * 3)
    assert type(optimizer.param_groups[0]["lr"]) is float


def _adds_on_the_cpu(x, total=torch.zeros(3)):  # noqa: B008
    total += 1
    return x


def test_cpu_tensors_are_neither_written_nor_looked_at():
    on_cpu = torch.ones(3)
    cases = [_adds_on_the_cpu, lambda x: on_cpu.fill_(2), lambda x: x + (on_cpu * 2).to("jax")]
    for function in cases:
        with pytest.raises(NotTraceableError, match="drop pure=True"):
            pure(function)(ones())
    assert on_cpu.tolist() == [1, 1, 1]
    with pytest.raises(DataDependentError, match="on the CPU is asked for"):
        pure(lambda x: x * on_cpu.sum().item())(ones())


def test_cpu_tensors_that_are_given_to_operators():
    on_cpu, lengths = torch.zeros(3), torch.tensor([3])
    with pytest.raises(RuntimeError, match="to be on the same device"):
        pure(lambda x: torch.add(x, x, out=on_cpu))(ones())
    assert pure(lambda x: x + on_cpu[0])(ones()).tolist() == [1, 1, 1]
    with pytest.raises(DataDependentError, match="on the CPU is asked for"):
        pure(lambda x: nn.utils.rnn.pack_padded_sequence(x[:, None], lengths).data)(ones())


@both
@pytest.mark.parametrize("first", ["good", "bad"])
def test_an_index_out_of_range_raises_and_leaves_tensors_alone(first, pure):
    table = nn.Embedding(4, 2).to("jax")
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    step = torch_jax.jit(step_of(table, optimizer), pure=pure)
    good, bad = (torch.tensor([0, n], device="jax") for n in (3, 9))
    for _ in range(3):
        if first == "good":
            step(good)
        before = table.weight.detach().cpu().clone()
        with pytest.raises(IndexError):
            step(bad)
        assert torch.equal(table.weight.detach().cpu(), before)
        step(good)
        assert not torch.equal(table.weight.detach().cpu(), before)


@pytest.mark.parametrize(
    "look, kind, stays", [(len, torch.float, True), (len, torch.long, False), (str, None, False)]
)
def test_what_is_written_as_a_whole_stays_where_an_index_is_out_of_range(look, kind, stays):
    """No operator reads what the tensor held before: only the failed check asks for it.

    Integers that are given are looked at first, and the operator raises where Python calls it.
    """
    kept = torch.zeros(3, device="jax")

    def function(x, at):
        kept.copy_(x * 2)
        look(x)
        return x[at.long()]

    jitted = pure(function)
    for at in (1, 2, 9, 0):
        x, before = torch.rand(3), kept.cpu().clone()
        with pytest.raises(IndexError) if at == 9 else nullcontext():
            jitted(x.to("jax"), torch.tensor([at], device="jax", dtype=kind))
        assert_same(kept, before if at == 9 and stays else x * 2)


def raises_in_the_middle(compile):
    weight = ones()

    def function(x, call):
        weight.add_(x)
        if call == 2:
            raise ValueError(f"call {call}")
        weight.mul_(2)
        return weight.sum()

    function = compile(function)
    for call in (0, 2, 0, 2, 0, 0):
        if call == 2:
            with pytest.raises(ValueError, match="call 2"):
                function(ones(), call)
        else:
            yield function(ones(), call), weight
        yield weight


def handles_an_error_itself(compile):
    def function(x):
        try:
            return x @ torch.ones(5, 5, device=x.device)
        except RuntimeError:
            return x * 3

    function = compile(function)
    for _ in range(3):
        yield function(ones())


@pytest.mark.parametrize("program", [raises_in_the_middle, handles_an_error_itself])
def test_exceptions_of_python(program, agree):
    agree(program)


@pytest.mark.parametrize("checks", ["auto", "never"])
def test_a_factorization_is_checked_within_the_program(checks):
    root = torch.zeros(3, 3, device="jax")

    @torch_jax.jit(pure=True)
    def function(x):
        root.copy_(torch.linalg.cholesky(x))
        return torch.linalg.inv(root)

    with config.temporarily("check_indices", checks):
        for scale in (4.0, 9.0, 16.0):
            x = scale * torch.eye(3)
            assert_same(function(x.to("jax")), torch.linalg.inv(torch.linalg.cholesky(x)))
        with pytest.raises(torch.linalg.LinAlgError, match="positive-definite"):
            function(-torch.eye(3, device="jax"))
    assert root.diag().tolist() == [4, 4, 4]
    assert "observed" in str(function.explain()) and "looks at" not in str(function.explain())
