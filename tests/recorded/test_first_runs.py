"""The first runs of a graph: its operators run one by one, and XLA compiles it meanwhile."""

from __future__ import annotations

import functools
import weakref
from unittest import mock

import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_jax
from tests.support.compare import assert_same
from tests.support.lazily import counted
from torch_jax.core import compilations
from torch_jax.recorded import bodies
from torch_jax.recorded.program import Program

pytestmark = pytest.mark.usefixtures("compiled_later")


def _model(device, dropout=0.0):
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 3)
    return torch.nn.Sequential(*layers).to(device)


def _step(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _losses(device, wrap, runs=6, dropout=0.0):
    model = _model(device, dropout)
    x, y = torch.randn(5, 4).to(device), torch.arange(5).to(device) % 3
    step = wrap(_step(model, torch.optim.AdamW(model.parameters(), lr=0.1)))
    torch.manual_seed(1)
    return [step(x, y).item() for _ in range(runs)]


def test_results_have_the_default_dtype_of_the_call():
    x = torch.arange(4).to("jax")
    for changes in (False, False, True):  # before the operator runs
        try:
            with torch_jax.lazy():
                torch.set_default_dtype(torch.float64)
                half = x / 2
                if changes:
                    torch.set_default_dtype(torch.float32)
        finally:
            torch.set_default_dtype(torch.float32)
        assert (half.dtype, half.tolist()) == (torch.float64, [0.0, 0.5, 1.0, 1.5])


def test_conjugated_and_negated_views_are_written():
    def change(z):
        z.conj().mul_(2j), z.conj().imag.add_(1), z.imag.zero_()
        z.conj()[0] = 1j
        z.conj()[1:].copy_(z[:1])
        return z

    numbers = torch.tensor([1 + 2j, 3 - 1j])
    recorded = torch_jax.jit(change)
    for _ in range(4):
        assert_same(recorded(numbers.to("jax")), change(numbers.clone()))


def test_losses_come_before_the_program():
    """Two runs by PyTorch's kernels, whose first has the CPU's bits; one program for the others."""
    with counted() as did:
        assert _losses("jax", torch_jax.jit, 1) == _losses("cpu", lambda f: f, 1)
    assert did.compiles == 0
    with counted() as did:
        actual = _losses("jax", torch_jax.jit)
    assert actual == pytest.approx(_losses("cpu", lambda f: f), rel=1e-5)
    assert did.compiles == 1 and did.graphs == 6


@pytest.mark.parametrize("first", [1, 2, 3, 5])
def test_the_first_compiled_run_is_the_one_that_is_asked_for(first):
    f = torch_jax.jit(lambda x: (x * 2).cos())
    before, hits = torch_jax.metrics()["hits"], []
    with torch_jax.config.temporarily("compiled_from_run", first), counted() as did:
        for _ in range(6):
            f(torch.ones(30 + first, device="jax"))
            hits.append(torch_jax.metrics()["hits"] - before)
    # a program is made in its first run, not found; what is new runs at once, and is not counted
    found_from = max(first, 2) + (first > 2)
    assert hits == [max(0, run - found_from + 1) for run in range(1, 7)]
    assert did.compiles == 1


def test_what_comes_once_is_never_compiled(caplog):
    """Nor does the log speak of compiling it."""
    f = torch_jax.jit(lambda x: (x + 1).relu().sum())
    before = torch_jax.metrics()["compiles"]
    for n in range(3, 40):
        assert f(torch.ones(n, device="jax")).item() == 2 * n
    assert torch_jax.metrics()["compiles"] == before and not caplog.records


def test_what_comes_once_is_never_traced():
    """A training step of sizes that change each time takes as long as PyTorch's kernels do."""
    model = _model("jax")
    step = torch_jax.jit(_step(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    traced = mock.Mock(wraps=bodies._traced)
    with mock.patch.object(bodies, "_traced", traced):
        for n in range(3, 12):
            x, y = torch.randn(n, 4, device="jax"), torch.arange(n, device="jax") % 3
            before = traced.call_count
            step(x, y)
    # but for the operators whose forms know nothing of the sizes, which come again
    assert traced.call_count == before


def test_an_operator_raises_when_it_is_called():
    def largest(x, n):
        y = x * 2
        try:
            return y[:n].max()
        except RuntimeError as error:
            return y.sum() + ("max()" in str(error))

    f, x = torch_jax.jit(largest), torch.arange(4.0)
    for n in (0, 2, 0, 0, 2, 0, 2):
        assert f(x.to("jax"), n).item() == largest(x, n).item()


def test_memory_is_free_as_early_as_eagerly():
    alive = []

    def step(x):
        y = x.sin()
        memory = weakref.ref(y.untyped_storage().array)
        y = y.cos()
        alive.append(memory() is not None)
        return y

    f = torch_jax.jit(step)
    for n in (3, 4):
        f(torch.ones(n, device="jax"))
    assert alive == [False, False]


def test_an_array_that_was_seen_between_two_calls_compiles_nothing():
    """It is written over as before: nothing holds what was seen."""
    weight = torch.zeros(4, device="jax")

    @torch_jax.jit
    def step():
        weight.add_(1)
        return weight.sum()

    for _ in range(4):
        step()
    with counted() as did:
        for _ in range(4):
            weight.cpu()
            step()
    assert did.compiles == 0 and weight.tolist() == [8.0] * 4


def test_a_graph_that_leaves_a_known_one():
    """It computes first all that is written down by then, and the rest operator by operator."""

    def step(x, cosine):
        y = x.sin()
        z = y.view(2, 2).t()
        y.mul_(2)
        y = y.cos() if cosine else y.tan()
        z += y.view(2, 2)
        return y, z, x + z.flatten()

    f = torch_jax.jit(step)
    for cosine in (True, True, False, True, True, False, False, False):
        x = torch.arange(4.0)
        assert_same(f(x.to("jax"), cosine), step(x, cosine))


def test_a_mesh_that_begins_in_a_first_run(monkeypatch):
    def step(x, begin=lambda: None):
        y = x * 2
        begin()
        return y.cos() + y

    x = torch.arange(4.0)
    begin = functools.partial(monkeypatch.setattr, "torch_jax.memory.sharding.Use.begun", True)
    assert_same(torch_jax.jit(step)(x.to("jax"), begin), step(x))


def test_draws_are_those_of_eager_runs():
    eager = _losses("jax", lambda f: f, dropout=0.5)
    assert _losses("jax", torch_jax.jit, dropout=0.5) == pytest.approx(eager, rel=1e-5)


def test_a_run_leaves_arrays_alone_that_other_tensors_share():
    """Neither what the graph is given, nor a result that two tensors share."""

    def step(x):
        kept = x.clone()
        other = torch.empty_like(kept)
        other.data = kept.detach()
        y = kept * 2
        shared = y.clone()
        y.add_(1), shared[1:].mul_(y[:-1])
        x.mul_(3)
        return kept, y, shared

    for wrap in (torch_jax.jit, lambda f: f):
        results = []
        for device in ("jax", "cpu"):
            x = torch.arange(4.0).to(device)
            alias, before = x.view(2, 2), x.clone()
            f = wrap(step) if device == "jax" else step
            results.append([[*f(x), alias.clone(), before] for _ in range(4)])
        assert_same(*results)


def test_views_that_begin_elsewhere_in_each_run_and_a_tensor_on_the_cpu():
    on_the_cpu = torch.tensor(2.0)

    def rows(x, i):
        y = x[i] * on_the_cpu
        y += x[i + 1, ::2].repeat(2)
        x[i, 1:] = y[:-1]
        return y, x.view(torch.int32)[i].clone(), x.t()[1:, i].sum()

    f = torch_jax.jit(rows)
    x, expected = torch.arange(24.0, device="jax").view(6, 4), torch.arange(24.0).view(6, 4)
    for i in (0, 3, 1, 4, 2, 0):
        assert_same(f(x, i), rows(expected, i))
        assert_same(x, expected)


def test_modes_of_the_user_see_each_operator_once():
    names: list[str] = []

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    x = torch.ones(3, 2, device="jax").t()
    with Operators(), Functions():
        torch_jax.jit(lambda x: x.sin().add_(2))(x)
    assert names == ["sin", "aten::sin", "add_", "aten::add_.Tensor"]


def test_a_run_that_ends_within_a_transform():
    """The backward pass of ``torch.func.grad`` may be recorded after a compiled function's call."""
    weight = torch.rand(3, requires_grad=True, device="jax")
    rows, bias = torch.rand(2, 3), torch.rand(3)

    def loss(x, y):
        return F.linear(x, y, x).square().sum()

    per_row = torch.func.vmap(torch.func.grad(loss), (0, None))
    expected = per_row(rows, torch.diag(bias))
    for _ in range(3):
        kept = torch_jax.jit(lambda: weight * 2)()
        assert_same(per_row(rows.to("jax"), torch.diag(bias).to("jax")), expected)
    assert kept.requires_grad


def test_a_backward_pass_that_the_caller_runs():
    model, expected = torch_jax.jit(_model("jax")), _model("cpu")
    x = torch.randn(5, 4)
    for _ in range(5):
        for one, given in ((model, x.to("jax")), (expected, x)):
            one.zero_grad()
            one(given).square().sum().backward()
        pairs = zip(model.parameters(), expected.parameters(), strict=True)
        for mine, other in pairs:
            torch.testing.assert_close(mine.grad.cpu(), other.grad)


def test_an_error_of_a_kernel_is_the_cpus():
    f = torch_jax.jit(torch.linalg.cholesky)
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        f(-torch.eye(3, device="jax")).sum().item()


def test_by_xla_a_graph_is_compiled_at_once(eager_by_xla):
    with counted() as did:
        torch_jax.jit(lambda x: (x * 2).tan())(torch.ones(3, device="jax"))
    assert did.compiles == 1


def test_a_function_of_jax_is_compiled_with_the_rest():
    f = torch_jax.jit(lambda x: torch_jax.call_jax(jnp.tan, x * 2) + 1)
    for run in range(5):
        with counted() as did:
            y = f(torch.ones(3, device="jax"))
        assert did.compiles == (run == 3)
    torch.testing.assert_close(y.cpu(), torch.full((3,), 2.0).tan() + 1)


def test_pure_functions_are_compiled_at_once():
    f = torch_jax.jit(lambda x: (x * 2).tan(), pure=True)
    with counted() as did:
        f(torch.ones(3, device="jax"))
    assert did.compiles == 1


@pytest.mark.xla_both
def test_the_program_writes_over_what_pytorch_s_kernels_have_made():
    """XLA does so in its own memory only; else it copies all that a step writes, at once."""
    x = torch.zeros(1 << 14, device="jax")
    f = torch_jax.jit(lambda: x.add_(1))
    for _ in range(3):
        f()
    copies = []
    original = Program.__call__

    def call(self, floats, integers, arrays, wanted=()):
        before = arrays[0].unsafe_buffer_pointer()
        results = original(self, floats, integers, arrays, wanted)
        copies.append(results[0].unsafe_buffer_pointer() != before)
        return results

    with mock.patch.object(Program, "__call__", call):
        for _ in range(3):
            f()
    assert copies == [False] * 3 and x.sum().item() == 6 << 14


def test_indices_of_new_shapes_are_checked_without_a_program():
    """Only one that is out of range asks XLA, whose program finds out what is wrong."""
    table = torch.arange(12.0).reshape(6, 2)
    on_device, before = table.to("jax"), compilations.here().made
    f = torch_jax.jit(lambda index: F.embedding(index, on_device) + on_device[index - 6])
    for n in range(1, 6):
        index = torch.arange(n)
        assert torch.equal(f(index.to("jax")).cpu(), 2 * table[index])
    assert compilations.here().made == before
    with pytest.raises(IndexError):
        f(torch.tensor([6, 0], device="jax"))


def test_zeros_of_no_elements_have_their_shape():
    padded = torch_jax.jit(lambda x: F.pad(x, (1, 2), mode="circular"))
    for _ in range(3):
        assert padded(torch.zeros(0, 3, 3, device="jax")).shape == (0, 3, 6)


def test_labels_that_a_step_cuts_out_of_its_batch_do_not_split_its_graph():
    model = torch.nn.Embedding(9, 9).to("jax")

    def step(batch):
        logits = model(batch[:, :-1]).flatten(0, 1)
        return F.cross_entropy(logits, batch[:, 1:].reshape(-1))

    f = torch_jax.jit(step)
    for seed in range(3):
        batch = torch.randint(9, (2, 5), generator=torch.Generator().manual_seed(seed)).to("jax")
        with counted() as did:
            torch.testing.assert_close(f(batch), step(batch))
        assert did.graphs == 1 and did.early == 0
    with pytest.raises(IndexError):
        f(batch + 3).item()


def test_a_look_ends_what_runs_at_once():
    """So the second turn of a loop that looks at values begins a recording, and comes again."""
    with torch_jax.lazy(), counted() as did:
        for _ in range(3):
            (torch.ones(17, device="jax") * 2).sum().item()
    assert did.graphs == 3 and did.early == 2


def test_a_group_ends_where_a_loop_comes_around_also_where_it_runs_at_once():
    def work(x):
        for _ in range(20):
            x = (x + 1).cos()
        return x

    with torch_jax.fused(), counted() as did:
        x = torch.ones(19, device="jax")
        for _ in range(4):
            x = work(x).tan()
    expected = torch.ones(19)
    for _ in range(4):
        expected = work(expected).tan()
    torch.testing.assert_close(x.cpu(), expected)
    assert did.graphs >= 3


def test_code_whose_sizes_are_in_its_data_compiles_little():
    """A program for each number of chosen elements would take the compiler longer than it saves."""

    def step(x):
        chosen = x[x > 0]
        return (chosen * 2).exp().sum() + len(chosen)

    compiled = torch_jax.jit(step)
    for call in range(24):
        x = torch.full((8,), -1.0)
        x[: 1 + call % 6] = 0.5
        assert_same(compiled(x.to("jax")), step(x))
    assert compiled.explain().programs.made <= 2


def test_code_whose_sizes_are_in_its_data_traces_as_little():
    """Sizes that come again run at once, too, until the programs so far have been worth it."""

    def chosen(x):
        return ((x[x > 0] * 2).exp() + 1).log().sum()

    compiled, traced = torch_jax.jit(chosen), mock.Mock(wraps=bodies._traced)
    with mock.patch.object(bodies, "_traced", traced):
        for n in [3, 4, 5, 6] * 3:
            x = torch.where(torch.arange(40_000) < n * 5_000, 0.5, -1.0)
            assert_same(compiled(x.to("jax")), chosen(x))
    assert traced.call_count == 1  # for the comparison


def test_code_that_begins_with_known_operators_looks_at_no_value():
    known, longer = torch_jax.jit(lambda x: x * 2), torch_jax.jit(lambda x: (x * 2).exp().sum())
    x = torch.linspace(0, 1, 7).to("jax")
    for function in (known, longer):
        for _ in range(4):
            function(x)
        assert function.explain().programs.made == 1


def test_parts_of_few_elements_between_looks_at_values_are_never_compiled():
    def settled(x, y):
        steps = 0
        while (x - y).abs().max() > 1e-3:
            x, steps = (x + y / x) / 2, steps + 1
        return x, steps

    compiled = torch_jax.jit(settled)
    for n in range(1, 9):
        x = torch.full((6,), float(n))
        found, steps = compiled(x.to("jax"), (x * 0 + 1).to("jax"))
        assert_same(found, settled(x, x * 0 + 1)[0])
        assert steps == settled(x, x * 0 + 1)[1]
    assert compiled.explain().programs.made == 0


def test_a_kind_of_pure_call_is_compiled_when_it_comes_again():
    compiled = torch_jax.jit(lambda x: (x * 2).cumsum(0), pure=True)
    programs = []
    for rows in (3, 4, 5, 6, 4, 4, 4):
        before = compilations.here().made
        assert_same(compiled(torch.ones(rows, device="jax")), (2 * torch.ones(rows)).cumsum(0))
        programs.append(compilations.here().made - before)
    assert programs[1:5] == [0] * 4 and programs[5] > 0 and programs[6] == 0
    assert str(compiled.explain()).count("Python ran again") == 3
