"""Views, writes, aliases and random numbers in graphs of ``torch.compile(backend="jax")``."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.support.compare import assert_same, to_jax
from tests.support.graphs import check, compiled
from tests.support.lazily import counted
from tests.support.values import randn
from torch_jax.core import compilations
from torch_jax.memory.storage import memory_of

# --- views, writes and aliases --------------------------------------------------------------------


def writes_an_input(x, y):
    x.mul_(2)
    y[:, 0] = 7
    return x + y


def writes_a_view(x, y):
    x.view(-1)[1:3].add_(y.sum())
    return x.t()


def returns_inputs_and_views(x, y):
    return x, x.view(-1), y.t(), y[0], (x + y).unbind(0)[0]


def returns_aliases_of_one_result(x, y):
    z = x * y
    return z, z.view(-1), z[:, 1]


def returns_copies_of_inputs(x, y):
    before = x.clone()
    x.copy_(y)
    return before, y.t().clone(), x + y


def resizes_dtype(x, y):
    return x.to(torch.float64), y.to(torch.bfloat16), (x > 0), x.long()


EFFECTS = [
    writes_an_input, writes_a_view, returns_inputs_and_views, returns_aliases_of_one_result,
    returns_copies_of_inputs, resizes_dtype,
]  # fmt: skip


@pytest.mark.parametrize("function", EFFECTS)
def test_writes_and_views(function):
    check(function, torch.randn(3, 4), torch.randn(3, 4))


def test_parts_of_a_tensor_are_one_kind_of_input():
    data, weight = torch.randn(64, 4), torch.randn(4, 2)
    ours, theirs = (to_jax(data), to_jax(weight)), (data, weight)
    run = compiled(lambda x, weight: (x @ weight).relu())
    for start in range(0, 64, 8):
        if start == 16:
            before = compilations.everything()
        (part, w), (same, v) = ((x[start : start + 8], w) for x, w in (ours, theirs))
        assert_same(run(part, w), (same @ v).relu())
    assert compilations.everything().minus(before).made == 0


@pytest.mark.slow
def test_inputs_that_are_views_are_read_through_them():
    base = torch.randn(4, 6)
    for make in (
        lambda b: b.t(), lambda b: b[:, 1:3], lambda b: b[::2], lambda b: b[1].expand(3, 6),
        lambda b: b.view(2, 2, 6).transpose(0, 1),
    ):  # fmt: skip

        def function(x):
            return x.sin(), x.reshape(-1) * 2

        run = compiled(function)
        for scale in (1.0, 2.0):
            theirs, ours = make(base * scale), make(to_jax(base * scale))
            assert_same(run(ours), function(theirs), strides=False)


def test_a_write_through_a_view_of_an_input_shows_in_its_base():
    def function(x):
        x.add_(1)
        return x * 2

    base, ours = torch.zeros(3, 4), torch.zeros(3, 4, device="jax")
    run = compiled(function)
    for _ in range(2):
        assert_same(run(ours[:, 1]), function(base[:, 1]))
        assert_same(ours, base)


def test_views_of_inputs_that_want_gradients_are_saved(caplog):
    x, y = (torch.randn(3, 3) for _ in range(2))
    theirs = [t.clone().requires_grad_() for t in (x, y)]
    ours = [to_jax(t).requires_grad_() for t in (x, y)]
    run = compiled(lambda x, y: (x @ y).relu().sum())
    for _ in range(2):
        run(*ours).backward()
        (theirs[0] @ theirs[1]).relu().sum().backward()
    for mine, its in zip(ours, theirs, strict=True):
        assert_same(mine.grad, its.grad)
    assert not [one for one in caplog.records if "recorded" in one.getMessage()]


def test_a_factorization_that_fails_is_an_error():
    """Its check is an effect: AOTAutograd gives graphs tokens of effects, which are None."""
    run = compiled(lambda x: torch.linalg.inv(x) * 2)
    check(lambda x: torch.linalg.inv(x) * 2, 2 * torch.eye(3))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        run(torch.zeros(3, 3, device="jax"))
    with counted() as did:
        run(torch.eye(3, device="jax"))
    assert did.graphs == 1


def test_two_inputs_that_share_memory():
    def function(x, y):
        x.add_(1)
        return x * y, y.t(), y[1:]

    base = torch.arange(12.0).view(4, 3)
    ours, run = to_jax(base), compiled(function)
    for _ in range(2):
        actual, expected = run(ours[:3], ours[1:].t()), function(base[:3], base[1:].t())
        base.mul_(2), ours.mul_(2)
        assert_same(actual, expected)
        assert_same(ours, base)


def test_outputs_alias_as_in_eager_mode():
    def function(x):
        y = x + 1
        return x.view(-1), y, y.view(-1)

    x = torch.zeros(2, 3, device="jax")
    of_input, y, of_y = compiled(function)(x)
    of_input.add_(5)
    of_y.mul_(3)
    assert_same(x, torch.full((2, 3), 5.0))
    assert_same(y, torch.full((2, 3), 3.0))


@pytest.mark.xla_default
def test_written_memory_is_donated_unless_somebody_else_has_it():
    def function(x):
        x.add_(1)

    x = torch.zeros(64, device="jax")
    copied, run = x.clone(), compiled(function)
    version = x._version
    run(x)
    assert x._version == version + 1
    assert_same(copied, torch.zeros(64))  # it shared the memory until now
    before = memory_of(x)
    run(x)
    assert not before.is_deleted()  # we hold it
    assert_same(x, torch.full((64,), 2.0))
    pointer = memory_of(x).unsafe_buffer_pointer()
    del before
    run(x)
    assert memory_of(x).unsafe_buffer_pointer() == pointer
    kept = compiled(function, options={"donate": False})
    pointer = memory_of(x).unsafe_buffer_pointer()
    kept(x)
    assert memory_of(x).unsafe_buffer_pointer() != pointer
    assert_same(x, torch.full((64,), 4.0))


@pytest.mark.xla_default
def test_a_graph_can_be_kept_for_a_second_backward_unless_saved_memory_is_donated():
    def function(x):
        return x.sin().exp().sum()

    x = torch.randn(5)
    theirs, ours = x.clone().requires_grad_(), to_jax(x).requires_grad_()
    function(theirs).backward()
    loss = compiled(function)(ours)
    loss.backward(retain_graph=True)
    assert_same(ours.grad, theirs.grad)
    loss.backward()
    assert_same(ours.grad, theirs.grad * 2)
    ours.grad = None
    torch._dynamo.reset()
    loss = compiled(function, options={"donate": True})(ours)
    loss.backward()
    assert_same(ours.grad, theirs.grad)


# --- randomness -----------------------------------------------------------------------------------


def masked(x):
    x = x * torch._sample_dirichlet(x.detach().exp())  # which PyTorch has no fake tensors for
    return F.dropout(x, 0.5), x * (torch.rand(x.shape, device=x.device) > 0.5)


@pytest.mark.xla_default  # without optimization XLA rounds a gamma otherwise in a larger program
def test_draws_are_those_of_eager_mode_fresh_and_replayed_backwards():
    run = compiled(masked)
    seen = []
    for seed in (0, 0, 1, None):  # None: going on from there
        results = []
        if seed is not None:
            torch.manual_seed(seed)
        state = torch.jax.get_rng_state()
        for function in (masked, run):
            torch.jax.set_rng_state(state)
            x = torch.ones(32, device="jax", requires_grad=True)
            dropped, chosen = function(x)
            gradient = torch.autograd.grad((dropped + 3 * chosen).sum(), x)[0]
            results.append((dropped.detach().cpu(), chosen.detach().cpu(), gradient.cpu()))
        for mine, its in zip(*results, strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=0)
        dropped, chosen, gradient = results[1]
        torch.testing.assert_close(gradient, dropped + 3 * chosen)
        seen.append(torch.cat([dropped, chosen]))
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2]) and not torch.equal(seen[2], seen[3])


@pytest.mark.slow
def test_generators_of_the_users_break_the_graph_and_draw_as_in_eager_mode():
    generator = torch.Generator("jax")

    def function(x, given):
        return x + torch.rand(3, generator=generator, device=x.device), x.clone().normal_(
            generator=given
        )

    x, results = torch.ones(3, device="jax"), []
    for run in (function, compiled(function, fullgraph=False)):
        generator.manual_seed(3)
        results.append([t.cpu() for _ in range(2) for t in run(x, generator)])
    assert all(map(torch.equal, *results))
    assert not torch.equal(results[1][0], results[1][2])


@pytest.mark.slow
def test_a_checkpoint_repeats_its_draws():
    def part(x):
        return F.dropout(x.sin(), 0.5) * 2

    def function(x):
        return checkpoint(part, x, use_reentrant=False).sum()

    x = randn(64, requires_grad=True)
    run = compiled(function)
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        (gradient,) = torch.autograd.grad(run(x), x)
        torch.manual_seed(seed)
        (expected,) = torch.autograd.grad(part(x).sum(), x)
        assert_same(gradient, expected.cpu())


@pytest.mark.slow
@pytest.mark.parametrize("donate", [None, False])
def test_a_call_that_raises_has_written_nothing(donate):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.norm = nn.Embedding(4, 2), nn.BatchNorm1d(2)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, at, count):
            self.calls += 1
            count.add_(1)
            return self.norm(self.rows(at))

    model = Table()
    ours = copy.deepcopy(model).to("jax")
    run = compiled(ours, options={} if donate is None else {"donate": donate})
    count = torch.tensor(0.0)  # on the CPU
    good, bad = torch.tensor([0, 1, 3]), torch.tensor([0, 9, 1])
    expected = model(good, torch.tensor(0.0))
    for _ in range(2):
        with pytest.raises(IndexError):
            run(to_jax(bad), count)
    assert_same(run(to_jax(good), count), expected, scale=5)
    assert count.item() == 1
    for ours_, theirs in zip(ours.buffers(), model.buffers(), strict=True):
        assert_same(ours_, theirs)


def test_results_in_channels_last_are_viewed():
    """Dynamo takes a shuffle's result on this device for contiguous."""
    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    check(lambda x, w: F.conv2d(x, w).flatten(1), x, torch.randn(4, 4, 2, 2))
    check(lambda x: F.pixel_shuffle(x, 2).flatten(1), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", [torch.channels_last, torch.channels_last_3d])
def test_convolutions_in_channels_last_are_made_contiguous(form, dtype):
    dims = 4 if form == torch.channels_last else 5
    x = torch.randn(2, 4, *[3] * (dims - 2), dtype=dtype).to(memory_format=form)
    weight = torch.randn(4, 4, *[2] * (dims - 2), dtype=dtype)
    convolve = F.conv2d if dims == 4 else F.conv3d
    for function in (convolve, lambda x, w: convolve(x, w).relu().contiguous()):
        result = torch.compile(function, backend="jax")(x.to("jax"), weight.to("jax"))
        expected = function(x, weight)
        assert_same(result, expected, scale=5)
        assert result.stride() == expected.stride()


def test_a_backward_pass_of_a_graph_for_all_sizes_runs_twice():
    compiled = torch.compile(lambda x: (x**3).sin().sum(), backend="jax", dynamic=True)
    x = torch.ones(3, device="jax", requires_grad=True)
    y = compiled(x)
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    assert torch.equal(x.grad, 2 * once)


def test_views_of_tensors_on_the_cpu_are_theirs():
    """AOTAutograd makes a new view of the tensor, at the place that the result of the graph has."""
    rows = torch.arange(12.0).view(3, 4)

    def views(x, number, n):
        return x[n], x.t()[n:], number.expand(n + 1), x * 2

    compiled = torch.compile(views, backend="jax")
    for x in (rows, rows.t(), rows[1:], rows[:, ::2]):
        for n in range(2):
            found, expected = compiled(x, rows[1, n], n), views(x, rows[1, n], n)
            assert all(map(torch.equal, found, expected))
            assert [one.data_ptr() for one in found[:3]] == [one.data_ptr() for one in expected[:3]]


PLACES = [lambda x: x[1:], lambda x: x[:, ::2], lambda x: x.flatten()[3:12].view(3, 3).t()]


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_views_of_what_is_written_lie_where_they_do_in_eager_mode(device):
    """Find views at their places, though a graph's new value of an input has other strides."""

    def write(x, n):
        x[n:].neg_()
        twice = x * 2
        return x[n], x.t()[n:], x.unfold(1, 2, 1)[n], x.expand(2, *x.shape), twice, twice.t()[n]

    run = compiled(write, dynamic=True)
    for place in PLACES:
        for n in (1, 2):
            theirs = torch.arange(36.0).view(6, 6)
            ours = theirs.to(device, copy=True)
            expected, actual = write(place(theirs), n), run(place(ours), n)
            for a, e in zip(actual, expected, strict=True):
                assert (a.device.type, a.stride(), a.storage_offset()) == (
                    device, e.stride(), e.storage_offset(),
                )  # fmt: skip
            for at, number in enumerate((2, 3, 5)):  # what is written later shows in all of them
                for of, results in ((theirs, expected), (ours, actual)):
                    of.mul_(number), results[at].add_(number), results[-1].sub_(number)
            for a, e in zip((ours, *actual), (theirs, *expected), strict=True):
                assert torch.equal(a.cpu(), e)


def test_results_of_the_cpu_that_have_gradients_are_written():
    x = torch.ones(3, requires_grad=True)
    y = compiled(lambda x: x * 2)(x)
    y.mul_(y.detach() + 1).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 6.0))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_as_strided_reaches_the_memory_around_an_input(device):
    def function(x, n):
        return x.as_strided((2, 2), (1, 2), n) * 2

    run, base = compiled(function), torch.arange(16.0).view(4, 4)
    for n in (1, 2):
        found = run(base.to(device)[2:].t(), n)
        assert torch.equal(found.cpu(), function(base[2:].t(), n))


def test_views_of_views_among_the_results_do_not_keep_a_graph_from_its_program(caplog):
    weight = torch.randn(4, 3)
    ours = to_jax(weight).requires_grad_()

    def chosen(x, weight):
        logits = x @ weight
        best = logits.argmax(-1)
        places = best.unsqueeze(-1).expand([2])[:1]
        return best, logits.gather(-1, places)

    run = compiled(chosen)
    for call in range(3):
        assert_same(run(torch.ones(4).to("jax") * call, ours), chosen(torch.ones(4) * call, weight))
    assert not [one for one in caplog.records if "recorded" in one.getMessage()]
