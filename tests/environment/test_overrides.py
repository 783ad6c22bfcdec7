"""Functions in place of operators and of PyTorch's callables, in every executor, and their end."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.values import ones
from torch_jax.environment import overrides
from torch_jax.observe import operators

env = torch_jax.default_env()


@pytest.fixture(autouse=True)
def none_left():
    """No test leaves an override behind."""
    others = env.overrides()
    before = F.scaled_dot_product_attention, F.relu, torch.relu, torch.Tensor.relu
    yield
    assert env.overrides() == others
    after = F.scaled_dot_product_attention, F.relu, torch.relu, torch.Tensor.relu
    assert all(map(lambda a, b: a is b, before, after))
    assert torch.relu(-ones()).tolist() == [0, 0, 0]


# --- operators ------------------------------------------------------------------------------------

RELU = {
    "packet": torch.ops.aten.relu,
    "overload": torch.ops.aten.relu.default,
    "name": "aten::relu",
    "name with a dot": "aten.relu",
    "short name": "relu",
}
CALLS = {
    "function": torch.relu,
    "method": lambda x: x.relu(),
    "functional": F.relu,
    "module": nn.ReLU(),
    "operator": torch.ops.aten.relu,
    "in place": lambda x: x.clone().relu_(),
    "in place functional": lambda x: F.relu(x.clone(), inplace=True),
    "out": lambda x: torch.ops.aten.relu.out(x, out=torch.empty_like(x)),
    "inference": torch.inference_mode()(torch.relu),
    "no gradients": torch.no_grad()(torch.relu),
    "jit": torch_jax.jit(lambda x: torch.relu(x)),
    "jax.jit": lambda x: _through_jax(torch.relu, x),
    "functionalized": torch.func.functionalize(torch.relu),
    "vmap": lambda x: torch.func.vmap(torch.relu)(x),
}


def _through_jax(function, x):
    from torch_jax.memory.storage import memory_of, wrap

    run = jax.jit(lambda array: memory_of(function(wrap(array))))
    return wrap(run(memory_of(x)))


@pytest.mark.parametrize("target", RELU)
def test_every_name_of_an_operator(target):
    with env.override(RELU[target], lambda x: x * 10):
        assert torch.relu(ones()).tolist() == [10, 10, 10]


@pytest.mark.parametrize("takes", ["jax", "torch"])
@pytest.mark.parametrize("call", CALLS)
def test_every_way_to_call_an_operator(call, takes):
    run = CALLS[call]
    assert run(-ones()).tolist() == [0, 0, 0]
    with env.override("aten::relu", lambda x: x * 10, takes=takes):
        assert run(-ones()).tolist() == [-10, -10, -10]
        with env.override("aten::relu", lambda x: x * 7, takes=takes):
            assert run(-ones()).tolist() == [-7, -7, -7]
        assert run(-ones()).tolist() == [-10, -10, -10]
    assert run(-ones()).tolist() == [0, 0, 0]


def test_a_pure_function_is_observed_once_for_each_override():
    function = torch_jax.jit(lambda x: torch.relu(x), pure=True)
    ten = env.override("aten::relu", lambda x: x * 10)
    for _ in range(3):
        assert function(-ones()).tolist() == [0, 0, 0]
        with ten:
            assert function(-ones()).tolist() == [-10, -10, -10]
    assert function.explain().observed == 2
    assert "an override" in function.explain().reasons[0]


def test_gradients_of_an_operator_stay_pytorchs():
    x = ones(requires_grad=True)
    with env.override("aten::relu", lambda x: x * 10):
        torch.relu(x).sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


def test_a_backward_operator_can_be_overridden():
    x = ones(requires_grad=True)
    with env.override("aten::threshold_backward", lambda gradient, x, threshold: gradient * 5):
        torch.relu(x).sum().backward()
    assert x.grad.tolist() == [5, 5, 5]


def test_the_whole_ladder_is_below_an_override():
    ladder = {
        "table": ("aten::mul.Tensor", torch.mul, (ones(), ones())),
        "kernel": ("aten::clone", torch.clone, (ones(),)),
        "composite": ("aten::selu", torch.selu, (ones(),)),
        "decomposed": ("aten::hardshrink", F.hardshrink, (ones(),)),
        "of two inputs": ("aten::linear", F.linear, (ones(2, 3), ones(4, 3))),
    }
    for name, (target, function, args) in ladder.items():
        expected = function(*args)
        with env.override(target, lambda *given, **named: jnp.full((2,), 42.0), meta=False):
            assert function(*args).tolist() == [42, 42], name
        assert torch.equal(function(*args).cpu(), expected.cpu()), name


def test_an_operator_that_pytorch_composes_has_the_functions_gradient():
    x = ones(requires_grad=True)
    for takes in ("jax", "torch"):
        with env.override("aten::dropout", lambda x, p, train: x * x * p, takes=takes):
            result = F.dropout(x, 0.5, training=False)
            (gradient,) = torch.autograd.grad(result.sum(), x)
        assert result.tolist() == [0.5, 0.5, 0.5]
        assert gradient.tolist() == [1, 1, 1]
    assert F.dropout(x, 0.5, training=False) is x


def test_inside_a_function_its_target_is_what_it_was():
    with env.override("aten::relu", lambda x: torch.relu(x) + 1, takes="torch"):
        assert torch.relu(-ones()).tolist() == [1, 1, 1]
        with env.override("aten::relu", lambda x: torch.relu(x) * 2, takes="torch"):
            assert torch.relu(-ones()).tolist() == [2, 2, 2]


def test_permanent_overrides_are_undone_in_order():
    assert operators.describe(torch.ops.aten.tan.default).rung == "table"

    @env.override("aten::tan")
    def first(x):
        return x * 2

    @torch_jax.register_op("tan")
    def second(x):
        return x * 3

    x = ones()
    assert operators.describe(torch.ops.aten.tan.default).rung == "override"
    assert "test_overrides" in operators.describe(torch.ops.aten.tan.default).where
    assert torch.tan(x).tolist() == [3, 3, 3]
    env.remove_override("aten::tan")
    assert torch.tan(x).tolist() == [2, 2, 2]
    assert first(2) == 4
    env.remove_override(torch.ops.aten.tan)
    assert torch.allclose(torch.tan(x).cpu(), torch.tan(x.cpu()))
    with pytest.raises(KeyError, match="no permanent override"):
        env.remove_override("aten::tan")


def test_custom_operators():
    with torch.library._scoped_library("overridden", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        with env.override("overridden::twice", lambda x: x + x, meta=False):
            assert torch.ops.overridden.twice(ones()).tolist() == [2, 2, 2]
        with pytest.raises(torch_jax.OperatorNotFound, match="overridden.twice"):
            torch.ops.overridden.twice(ones())


# --- callables ------------------------------------------------------------------------------------


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """Plain attention as a JAX function."""
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jax.nn.softmax(scores) @ value


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("target", ["callable", "operator"])
def test_attention_as_a_jax_function(target, causal):
    torch.manual_seed(0)
    targets = {
        "callable": F.scaled_dot_product_attention,
        "operator": "aten::scaled_dot_product_attention",
    }
    q, k, v = (torch.randn(2, 4, 5, 8, requires_grad=True) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    gradients = torch.autograd.grad(expected.square().sum(), (q, k, v))
    on_jax = [x.detach().to("jax").requires_grad_() for x in (q, k, v)]
    called = []

    def counted(*args, **kwargs):
        called.append(1)
        return attention(*args, **kwargs)

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    with env.override(targets[target], counted, takes="jax"):
        for function in (attend, torch_jax.jit(attend)):
            result = function(*on_jax)
            torch.testing.assert_close(result.cpu(), expected)
            ours = torch.autograd.grad(result.square().sum(), on_jax)
            for mine, theirs in zip(ours, gradients, strict=True):
                torch.testing.assert_close(mine.cpu(), theirs)
    assert called


@pytest.mark.slow
def test_callables_by_whatever_name_they_are_called():
    from torch.nn.functional import relu as imported

    globals()["relu_of_this_module"] = F.relu
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=F.relu).to("jax").eval()
    with env.override(F.relu, lambda x, inplace=False: x * 10):
        assert F.relu(-ones()).tolist() == [-10, -10, -10]
        assert relu_of_this_module(-ones()).tolist() == [-10, -10, -10]  # noqa: F821
        assert nn.ReLU()(-ones()).tolist() == [-10, -10, -10]
        assert F.relu(-torch.ones(3)).tolist() == [0, 0, 0]  # of other devices
        assert F.relu.__name__ == "relu"
        assert pickle.loads(pickle.dumps(F.relu)) is F.relu
        assert imported(-ones()).tolist() == [0, 0, 0]  # a local variable is the original
    assert imported is F.relu
    assert layer(ones(1, 2, 8)).shape == (1, 2, 8)


def test_methods_and_functions_are_callables_of_their_own():
    with env.override(torch.Tensor.relu, lambda x: x * 10):
        assert (-ones()).relu().tolist() == [-10, -10, -10]
        assert torch.relu(-ones()).tolist() == [0, 0, 0]
    with env.override(torch.Tensor.__add__, lambda x, y: x * y):
        assert (ones() + 5).tolist() == [5, 5, 5]
    assert (ones() + 5).tolist() == [6, 6, 6]


def test_a_callables_function_has_its_own_gradient():
    x = ones(requires_grad=True)
    with env.override(F.gelu, lambda x, approximate="none": x**3):
        (gradient,) = torch.autograd.grad(F.gelu(x).sum(), x)
    assert gradient.tolist() == [3, 3, 3]


def test_factories_are_callables_too():
    """The environment replaces these as well; both can be in force."""
    x = ones()

    def like(other, **options):
        return other * 0 + 7

    with env, env.override(torch.zeros_like, like):
        assert torch.zeros_like(x).tolist() == [7, 7, 7]
        assert torch.ones(2).device.type == "jax"
    assert torch.zeros_like(x).tolist() == [0, 0, 0]


# --- for whom -------------------------------------------------------------------------------------


def test_scoped_overrides_are_the_threads_own():
    inside, done = threading.Event(), threading.Event()
    results = {}

    def scoped() -> None:
        with env.override("aten::relu", lambda x: x * 10), env.override(F.silu, lambda x: x * 3):
            inside.set()
            done.wait(20)
            results["inside"] = torch.relu(ones()).tolist() + F.silu(ones()).tolist()

    thread = threading.Thread(target=scoped)
    thread.start()
    inside.wait(20)
    results["outside"] = torch.relu(ones()).tolist()
    plain = F.silu(ones()).cpu()
    done.set()
    thread.join()
    assert results == {"inside": [10, 10, 10, 3, 3, 3], "outside": [1, 1, 1]}
    torch.testing.assert_close(plain, F.silu(torch.ones(3)))


def test_scoped_overrides_are_the_tasks_own():
    async def times(factor: int) -> list[float]:
        found = []
        with env.override("aten::relu", lambda x: x * factor):
            for _ in range(3):
                await asyncio.sleep(0.001)
                found += torch.relu(ones()).tolist()
        return found

    async def main():
        return await asyncio.gather(*map(times, range(2, 6)))

    assert asyncio.run(main()) == [[factor] * 9 for factor in range(2, 6)]


def test_permanent_overrides_are_seen_on_every_thread():
    results = []
    ready, go = threading.Event(), threading.Event()

    def run() -> None:
        ready.set()
        go.wait(20)
        results.append(torch.relu(ones()).tolist())

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(20)
    env.override("aten::relu")(lambda x: x * 10)
    go.set()
    thread.join()
    env.remove_override("aten::relu")
    assert results == [[10, 10, 10]]


def test_an_exception_ends_a_scope():
    with pytest.raises(ZeroDivisionError), env.override(F.relu, lambda x, inplace=False: 1 / 0):
        F.relu(ones())
    with pytest.raises(ValueError, match="mine"), env.override("aten::relu", _raise):
        torch.relu(ones())


def _raise(x):
    raise ValueError("mine")


@pytest.mark.slow
def test_what_a_scope_held_is_freed():
    class Function:
        def __call__(self, x):
            return x * 2

    function = Function()
    reference = weakref.ref(function)
    with env.override("aten::relu", function):
        torch.relu(ones())
    del function
    gc.collect()
    assert reference() is None


# --- other interceptors ---------------------------------------------------------------------------


class Wrapped:
    """A tensor-like of a third party."""

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        def bare(value):
            return value.tensor if isinstance(value, Wrapped) else value

        return cls(func(*map(bare, args), **{k: bare(v) for k, v in (kwargs or {}).items()}))


class Labelled(torch.Tensor):
    """A subclass that does nothing else."""


def test_tensor_likes_come_first():
    x = ones()
    result = torch.add(Wrapped(x), x, alpha=2)
    assert isinstance(result, Wrapped)
    assert result.tensor.tolist() == [3, 3, 3]
    labelled = x.as_subclass(Labelled)
    assert isinstance(labelled + x, Labelled)
    with env.override(torch.add, lambda *args, **kwargs: x * 9):
        assert isinstance(torch.add(Wrapped(x), x), Wrapped)
        assert torch.add(x, x).tolist() == [9, 9, 9]
        assert isinstance(torch.add(labelled, x), Labelled)


def test_function_modes_see_overridden_calls():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    with Mode(), env.override(F.relu, lambda x, inplace=False: x * 10):
        assert F.relu(-ones()).tolist() == [-10, -10, -10]
    assert "relu" in seen


def test_dispatch_modes_see_operators():
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode(), env.override("aten::relu", lambda x: x * 10):
        assert torch.relu(-ones()).tolist() == [-10, -10, -10]
    assert "aten.relu.default" in seen


def test_graphs_record_what_is_called():
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x):
        return F.relu(x) + 1

    with env.override(F.relu, lambda x, inplace=False: x * 10):
        symbolic = torch.fx.symbolic_trace(function)
        assert F.relu in {node.target for node in symbolic.graph.nodes} or any(
            "relu" in str(node.target) for node in symbolic.graph.nodes
        )
        assert symbolic(ones()).tolist() == [11, 11, 11]
        assert make_fx(function)(ones())(ones()).tolist() == [11, 11, 11]
    with env.override("aten::relu", lambda x: x * 10):
        graph = make_fx(function)(ones())
        assert graph(ones()).tolist() == [11, 11, 11]
    assert graph(ones()).tolist() == [2, 2, 2]


def test_fake_tensors_have_no_values_to_override():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with env.override("aten::relu", lambda x: x * 10), FakeTensorMode() as mode:
        fake = mode.from_tensor(ones())
        assert torch.relu(fake).device == torch.device("jax", 0)
        assert torch.empty(3, device="jax").relu().shape == (3,)


def test_function_transforms():
    with env.override(F.relu, lambda x, inplace=False: x * x * 10):
        x = ones(2, 3)
        assert torch.func.vmap(F.relu)(x).tolist() == [[10] * 3] * 2
        gradient = torch.func.grad(lambda x: F.relu(x).sum())
        assert gradient(x).tolist() == [[20] * 3] * 2
        assert torch.func.vmap(gradient)(x).tolist() == [[20] * 3] * 2


def test_torchscript_still_compiles_factories():
    with env:
        pass

    def made(n: int):
        return torch.ones(n) + torch.zeros(n)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert torch.jit.script(made)(3).tolist() == [1, 1, 1]


def test_dynamo_compiles_factories_without_a_break():
    with env:
        pass

    @torch.compile(backend="eager", fullgraph=True)
    def made(x):
        return x + torch.ones(3)

    assert made(torch.ones(3)).tolist() == [2, 2, 2]


# --- wrong uses -----------------------------------------------------------------------------------


def test_wrong_uses_say_what_to_do():
    with pytest.raises(ValueError, match="no operator 'aten::no_such_thing'"):
        env.override("aten::no_such_thing", abs)
    with pytest.raises(TypeError, match="an operator or a function"):
        env.override(3, abs)
    with pytest.raises(TypeError, match="an operator or a function"):
        env.override(nn.Linear, abs)
    with pytest.raises(TypeError, match="an override is a function"):
        env.override("aten::relu", 3)
    with pytest.raises(ValueError, match="'jax' or 'torch'"):
        env.override("aten::relu", abs, takes="numpy")
    with pytest.raises(TypeError, match="options"):
        env.override(F.relu, abs, static=("x",))
    with pytest.raises(ValueError, match="no public module"), env.override(lambda: 0, abs):
        pass
    with pytest.raises(TypeError, match="neither a tensor nor hashable"):
        with env.override(F.relu, lambda x, inplace: x, takes="jax"):
            F.relu(ones(), inplace=bytearray(1))


@pytest.mark.slow
def test_an_override_that_was_never_entered_is_said(recwarn):
    env.override("aten::relu", lambda x: x)
    gc.collect()
    assert any("never entered" in str(w.message) for w in recwarn)


def test_overrides_show_what_they_are():
    others = env.overrides()
    with env.override("aten::relu", attention) as override:
        assert env.overrides() == (override, *others)
        assert repr(override) == "<override of aten.relu.default by attention, a jax function>"
    assert overrides.in_force() == others


@pytest.mark.parametrize("result", [None, (), 3.0, "text", [1.0, 2.0], torch.ones(2)])
@pytest.mark.parametrize("call", [torch.relu, torch.relu_, lambda x: torch.topk(x, 1)])
def test_a_function_that_returns_no_arrays_is_told_so(call, result):
    name = "aten::topk" if "lambda" in call.__name__ else "aten::relu"
    x = torch.ones(2, device="jax")
    with env.override(name, lambda *args: result):
        with pytest.raises(TypeError, match=f"serves {name.replace('::', '.')}.* in place of"):
            call(x)
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("takes", ["torch", "jax"])
@pytest.mark.parametrize("name", ["relu", "linear"])
def test_a_function_that_returns_nothing_is_told_so(name, takes):
    x = torch.ones(2, 2, device="jax")
    arguments = {"relu": (x,), "linear": (x, x)}[name]
    with env.override(f"aten::{name}", lambda *args: None, takes=takes):
        with pytest.raises(TypeError, match=f"aten.{name}.default returned nothing"):
            getattr(torch.ops.aten, name)(*arguments)


def test_a_function_that_was_read_while_it_was_replaced():
    """Another thread may leave its override between the name's look-up and the call."""
    env = torch_jax.default_env()
    with env.override(F.silu, lambda x, inplace=False: x * 2):
        read = F.silu
    with env.override(read, lambda x, inplace=False: x * 3):
        assert F.silu(torch.ones(2, device="jax")).tolist() == [3, 3]
    assert F.silu is torch.nn.functional.silu is not read
