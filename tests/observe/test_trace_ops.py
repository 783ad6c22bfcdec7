"""``torch_jax.trace_ops``: the calls in a tree, the same results, and no trace left behind."""

from __future__ import annotations

import gc
import io
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torch_jax
from tests.support.steps import step_of
from tests.support.values import randn
from torch_jax._private import pytorch
from torch_jax.core.active import ACTIVE
from torch_jax.eager import kernel


def traced(function, *args, **kwargs):
    """The trace of a call."""
    with torch_jax.trace_ops(file=None) as trace:
        function(*args, **kwargs)
    return trace


def tree(calls):
    """Names of calls, each with those below it."""
    return [call.name if not call.children else (call.name, tree(call.children)) for call in calls]


def names(trace):
    return [call.name for call in trace]


def one(trace, name):
    (found,) = [call for call in trace if call.name == name]
    return found


@pytest.fixture
def x():
    torch.manual_seed(0)
    return randn(4, 4)


@pytest.fixture(autouse=True)
def _no_state_is_left():
    before = list(kernel.compile_listeners)
    yield
    assert kernel.compile_listeners == before
    assert ACTIVE.call_trees == ()
    assert pytorch.function_modes() == pytorch.dispatch_modes() == 0


# --- what is seen ---------------------------------------------------------------------------------


def test_dropout_in_evaluation_returns_its_input(x):
    trace = traced(F.dropout, x, training=False)
    (call,) = trace.calls
    assert call.name == "torch.nn.functional.dropout" and not call.children
    assert call.returned_input
    assert "returned its input" in str(trace)


def test_dropout_in_training_ends_in_the_table(x):
    (call,) = traced(F.dropout, x, training=True).calls
    assert not call.returned_input
    (inner,) = call.children
    assert (inner.name, inner.rung) == ("aten.native_dropout.default", "table")
    assert inner.where.startswith("torch_jax/ops/dropout.py:")
    assert inner.arguments == "float32[4,4], 0.5, True"
    assert inner.result == "[float32[4,4], bool[4,4]]"
    assert 0 < inner.seconds <= call.seconds
    assert call.line == inner.line and "test_trace_ops.py:" in call.line


def test_what_an_operator_is_composed_of_is_below_it(x):
    trace = traced(torch.ops.aten.empty_like.default, x)
    assert tree(trace.calls) == [("aten.empty_like.default", ["aten.empty_strided.default"])]
    assert [call.rung for call in trace] == ["composite", "kernel"]
    trace = traced(torch.ops.aten.alias_copy.default, x)
    assert trace.calls[0].rung == "composite" and trace.calls[0].children


def test_what_an_operator_above_autograd_is_composed_of_in_inference_mode(x):
    with torch.inference_mode():
        trace = traced(torch.matmul, x, x)
    (product,) = trace.calls[0].children
    assert (product.name, product.rung) == ("aten.matmul.default", "composite")
    assert one(trace, "aten.mm.default").rung == "table"


def test_a_variant_of_what_is_composed(x):
    trace = traced(lambda: torch.ops.aten.hardsigmoid.out(x, out=torch.empty_like(x)))
    variant = one(trace, "aten.hardsigmoid.out")
    assert variant.rung == "variant" and "aten.hardsigmoid.default" in tree(variant.children)


@pytest.mark.usefixtures("eager_by_xla")
def test_writes_of_a_kernel_about_storage_are_below_it(x):
    trace = traced(lambda: x[1:].copy_(x[:3].clone()))
    copy = one(trace, "aten.copy_.default")
    assert copy.rung == "kernel" and tree(copy.children) == ["torch_jax.write_.default"]


@pytest.mark.usefixtures("eager_by_xla")
def test_the_first_call_compiles_and_the_second_does_not():
    x = torch.ones(3, 11, 13, device="jax")
    first, second = (one(traced(torch.cosh, x), "aten.cosh.default") for _ in range(2))
    assert first.compiled == ["aten.cosh.default"] and second.compiled == []


def test_cpu_tensors_are_told_from_those_of_the_device():
    trace = traced(lambda: torch.ones(3).add(1).to("jax").cpu())
    assert one(trace, "aten.add.Tensor").arguments == "float32[3]@cpu, 1"
    assert one(trace, "aten.add.Tensor").rung == ""
    there, back = (call for call in trace if call.name == "aten._to_copy.default")
    assert there.result == "float32[3]" and back.result == "float32[3]@cpu"


def test_questions_about_tensors_are_left_out(x):
    trace = traced(lambda: (x.shape, x.dim(), x.dtype, x.is_contiguous(), x.grad, x.requires_grad))
    assert trace.calls == []


def test_arguments_of_every_kind_are_shown(x):
    class Loud:
        def __repr__(self):
            raise AssertionError("a repr may run anything")

    shown = traced(torch.cat, [x] * 6, dim=-1).calls[0].arguments
    assert shown == "[float32[4,4], float32[4,4], float32[4,4], float32[4,4], …], dim=-1"
    assert traced(lambda: x[..., 1:3, None]).calls[0].arguments == (
        "float32[4,4], [Ellipsis, 1:3, None]"
    )
    assert "dtype=float64" in traced(lambda: x.to(dtype=torch.float64)).calls[0].arguments

    @torch.overrides.wrap_torch_function(lambda x, other: (x,))
    def function(x, other):
        return x

    (call,) = traced(function, x, Loud()).calls
    assert call.arguments == "float32[4,4], <Loud>" and call.returned_input


def test_tensors_of_every_layout_are_shown(x):
    def work():
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).clone()
        return x.cpu().to_sparse().coalesce()

    shown = str(traced(work))
    assert "float32[...]@cpu" in shown and "is_coalesced.default(float32[4,4]@cpu)" in shown


def test_control_flow(x):
    trace = traced(lambda: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    assert names(trace)[-1] == "cond"


def test_under_autocast(x):
    with torch.autocast("jax", dtype=torch.bfloat16):
        trace = traced(F.linear, x, x)
    assert one(trace, "aten.linear.default").result == "bfloat16[4,4]"


def test_an_override_says_so(x):
    env = torch_jax.default_env()

    def mine(x):
        return x * 3

    with env.override("aten::relu", mine):
        trace = traced(torch.relu, x)
    call = one(trace, "aten.relu.default")
    assert call.rung == "override" and "test_trace_ops.py" in call.where
    assert one(traced(torch.relu, x), "aten.relu.default").rung == "table"


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("takes", ["jax", "torch"])
def test_an_override_above_autograd_says_so(x, takes, inference):
    def mine(x, p, train):
        return x * 3

    env = torch_jax.default_env()
    with env.override("aten::dropout", mine, takes=takes), torch.inference_mode(inference):
        trace = traced(F.dropout, x)
    call = one(trace, "aten.dropout.default")
    assert call.rung == "override" and "test_trace_ops.py" in call.where
    assert call.result == "float32[4,4]" and call.children


def test_functions_have_the_name_that_they_are_called_by(x):
    functions = {
        "torch.mm": torch.mm,  # and torch.spmm
        "torch.Tensor.mul": torch.Tensor.mul,
        "torch.linalg.det": torch.linalg.det,
        "torch.nn.functional.relu": F.relu,
        "torch.special.erf": torch.special.erf,
        "torch.relu": torch.relu,
        "torch.fft.fft": torch.fft.fft,
    }
    for name, function in functions.items():
        arguments = (x, x) if name in ("torch.mm", "torch.Tensor.mul") else (x,)
        assert traced(function, *arguments).calls[0].name == name


def test_an_overridden_function_says_so(x):
    def mine(query, key, value):
        return query * 2

    env = torch_jax.default_env()
    with env.override(F.scaled_dot_product_attention, mine):
        trace = traced(lambda: F.scaled_dot_product_attention(x, x, x))
    (call,) = trace.calls
    assert call.name.endswith("scaled_dot_product_attention")
    assert call.rung == "override" and "test_trace_ops.py" in call.where
    assert one(trace, "aten.mul.Tensor").rung == "table"


# --- printing -------------------------------------------------------------------------------------


def test_each_outermost_call_is_printed_when_it_ends(x, capsys):
    with torch_jax.trace_ops() as trace:
        F.silu(x)
        first = capsys.readouterr().out
        F.gelu(x)
        second = capsys.readouterr().out
    assert first.splitlines()[0].startswith("torch.nn.functional.silu(float32[4,4]")
    assert first.splitlines()[1].startswith("  aten.silu.default(float32[4,4]) -> float32[4,4] |")
    assert first + second == f"{trace}\n" and not capsys.readouterr().out


def test_a_file_of_ones_own(x, capsys):
    file = io.StringIO()
    with torch_jax.trace_ops(file) as trace:
        F.silu(x)
    assert file.getvalue() == f"{trace}\n" and not capsys.readouterr().out
    traced(F.silu, x)
    assert not capsys.readouterr().out


def test_a_backward_pass_without_a_caller_is_printed_when_it_is_over(x, capsys):
    loss = F.gelu(x.requires_grad_()).sum()
    with torch_jax.trace_ops() as trace, torch._C.DisableTorchFunction():
        loss.backward()
        torch.ones(2, device="jax")
    assert names(trace)[1] == "backward"
    printed = capsys.readouterr().out
    assert sorted(printed.splitlines()) == sorted(str(trace).splitlines())


# --- backward passes ------------------------------------------------------------------------------


def test_backward_passes_are_seen(x):
    x.requires_grad_()
    y = F.dropout(x, training=True)
    trace = traced(y.sum().backward)
    (call,) = trace.calls
    assert call.name == "torch.Tensor.backward"
    (backward,) = [child for child in call.children if child.level == "backward"]
    assert backward.name == "backward"
    assert "aten.native_dropout_backward.default" in tree(backward.children)
    assert {child.line for child in call.walk()} == {call.line}


def test_gradients_of_gradients(x):
    x.requires_grad_()

    def penalty():
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        gradient.sum().backward()

    trace = traced(penalty)
    assert names(trace).count("backward") == 2
    torch.testing.assert_close(x.grad.cpu(), 6 * x.detach().cpu())


def test_checkpoints_are_computed_again_in_the_backward_pass(x):
    x.requires_grad_()
    trace = traced(lambda: checkpoint(F.gelu, x, use_reentrant=False).sum().backward())
    below = list(one(trace, "backward").walk())
    assert "aten.gelu_backward.default" in [call.name for call in below]
    reentrant = traced(lambda: checkpoint(F.gelu, x, use_reentrant=True).sum().backward())
    assert names(reentrant).count("aten.gelu_backward.default") == 1


# --- with what else there is ----------------------------------------------------------------------


def test_a_failing_call_is_shown_with_its_error(x):
    with torch_jax.trace_ops(None) as trace, pytest.raises(RuntimeError):
        x + torch.ones(7, device="jax")
    call = trace.calls[-1]
    assert call.name == "torch.Tensor.add" and call.error.startswith("RuntimeError: ")
    assert "raised RuntimeError" in str(trace)
    F.relu(x)
    assert trace.calls[-1] is call


def test_an_error_in_the_block_leaves_it(x):
    with pytest.raises(ZeroDivisionError), torch_jax.trace_ops(None) as trace:
        F.relu(x)
        1 / 0  # noqa: B018
    assert names(trace)[0] == "torch.nn.functional.relu"


def test_blocks_nest(x):
    with torch_jax.trace_ops(None) as outer:
        F.silu(x)
        with torch_jax.trace_ops(None) as inner:
            torch.ops.aten.empty_like.default(x)
            F.gelu(x.requires_grad_()).sum().backward()
        F.relu(x)
    shown = tree(inner.calls)
    assert shown[0] == ("aten.empty_like.default", ["aten.empty_strided.default"])
    assert tree(outer.calls)[1 : 1 + len(shown)] == shown
    assert "aten.gelu_backward.default" in names(inner)
    assert tree(outer.calls)[0] == ("torch.nn.functional.silu", ["aten.silu.default"])


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_inside", [True, False])
def test_with_other_modes(x, is_inside):
    def work():
        return F.linear(torch.zeros_like(x) + x, x)

    with Counting() as alone:
        expected = work()
    trace, other = torch_jax.trace_ops(None), Counting()
    first, second = (trace, other) if is_inside else (other, trace)
    with first, second:
        result = work()
    assert torch.equal(result.cpu(), expected.cpu())
    assert other.seen == alone.seen
    assert set(alone.seen) <= set(names(trace))


def test_with_the_counter_of_flops(x):
    with FlopCounterMode(display=False) as counter:
        trace = traced(F.linear, x, x)
    assert counter.get_total_flops() == 2 * 4**3
    assert "aten.mm.default" in names(trace)


def test_function_transforms(x):
    def work():
        return torch.func.vmap(torch.func.grad(lambda v: (v * v).sum()))(x)

    with torch_jax.trace_ops(None) as trace:
        result = work()
    assert torch.equal(result.cpu(), work().cpu())
    assert "aten.mul.Tensor" in names(trace)


def test_each_thread_sees_its_own_calls(x):
    barrier, traces = threading.Barrier(2), {}

    def work(name, function):
        with torch_jax.trace_ops(None) as trace:
            for _ in range(20):
                barrier.wait()
                function(x.detach().requires_grad_()).sum().backward()
        traces[name] = names(trace)

    threads = [threading.Thread(target=work, args=(f.__name__, f)) for f in (F.silu, F.elu)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, other in (("silu", "elu"), ("elu", "silu")):
        assert traces[name].count(f"aten.{name}.default") == 20
        assert traces[name].count(f"aten.{name}_backward.default") == 20
        assert not any(call.startswith(f"aten.{other}") for call in traces[name])


@pytest.mark.slow
def test_nothing_is_kept_alive():
    with torch_jax.trace_ops(None) as trace:
        y = F.relu(torch.ones(3, device="jax"))
        memory = weakref.ref(y.untyped_storage())
    del y
    gc.collect()
    assert memory() is None and trace.calls


@pytest.mark.usefixtures("eager_by_xla")
@pytest.mark.slow
def test_values_are_the_same(x):
    def work():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.GELU())
        model.to("jax")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step = step_of(model, optimizer)
        for _ in range(3):
            step(x)
        return [p.detach().cpu() for p in model.parameters()]

    with torch_jax.trace_ops(None) as trace:
        seen = work()
    for ours, theirs in zip(seen, work(), strict=True):
        assert torch.equal(ours, theirs)
    assert "torch_jax.adam_.default" in names(trace)


# --- the page that tells how an operator is found -------------------------------------------------


# --- compiled functions ---------------------------------------------------------------------------


def test_pure_functions_show_what_is_observed_and_one_line_later(x):
    @torch_jax.jit(pure=True)
    def step(x):
        return F.dropout(F.silu(x), training=False).sum()

    first, _, second = (traced(step, x) for _ in range(3))  # the second call is audited
    assert first.calls[0].name.startswith("torch_jax.jit ")
    assert "torch.nn.functional.dropout" in names(first) and "aten.silu.default" in names(first)
    assert not any(call.compiled for call in first)
    assert "| recorded |" in str(first)
    (call,) = second.calls
    assert not call.children and "| one executable |" in str(second)
    assert "test_trace_ops.py:" in call.line
    assert step.explain().observed == 1


@pytest.mark.slow
def test_a_pure_training_step(x):
    def train(jitted, watched):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.GELU()).to("jax")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        step = step_of(model, optimizer)
        step = torch_jax.jit(step, pure=True) if jitted else step
        for _ in range(3):
            if watched:
                trace = traced(step, x)
            else:
                step(x)
        if jitted:
            assert step.explain().observed == 1
        if watched:
            assert len(trace.calls) == 1
        return [p.detach().cpu() for p in model.parameters()]

    plain = train(True, False)
    for ours, theirs in zip(train(True, True), plain, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(plain, train(False, False), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_failing_pure_function(x):
    @torch_jax.jit(pure=True)
    def step(x):
        return x.sum().item()

    with torch_jax.trace_ops(None) as trace, pytest.raises(torch_jax.DataDependentError):
        step(x)
    assert trace.calls[0].error.startswith("DataDependentError")
