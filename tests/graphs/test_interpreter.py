"""``JaxInterpreter``: fx graphs as functions of arrays, held against the CPU's results."""

from __future__ import annotations

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.fx.traceback as fx_traceback
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import fx, nn
from torch._higher_order_ops import map as hop_map
from torch._higher_order_ops import scan, while_loop
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from tests.support.models import Function
from tests.support.processes import output
from torch_jax import DataDependentError, JaxInterpreter, OperatorNotFound, config


class Everyday(nn.Module):
    """What graphs are made of: layers, buffers, factories on a device, writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.conv, self.head = nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 11)
        self.register_buffer("offset", torch.arange(5))

    def forward(self, tokens):
        x = self.norm(self.token(tokens))
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        x = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        logits = self.head(x)
        logits.add_(1)
        place = torch.arange(5, device="cpu") + self.offset
        return {"logits": logits, "best": [logits.argmax(-1) + place]}


MAKERS = {
    "symbolic_trace": lambda model, x: fx.symbolic_trace(model),
    "make_fx": lambda model, x: make_fx(model)(x),
    "functional make_fx": lambda model, x: make_fx(torch.func.functionalize(model))(x),
    "export": lambda model, x: torch.export.export(model, (x,)),
    "decomposed": lambda model, x: torch.export.export(model, (x,)).run_decompositions(),
}


def everyday():
    torch.manual_seed(0)
    return Everyday(), torch.randint(0, 11, (2, 5))


def assert_close(actual, expected, tolerance=2e-5):
    """The same tree, and in it the same dtypes, shapes and values."""
    ours, form = jax.tree_util.tree_flatten(actual)
    theirs, wanted = jax.tree_util.tree_flatten(expected)
    assert form == wanted
    for array, tensor in zip(ours, theirs, strict=True):
        assert isinstance(array, jax.Array), type(array)
        assert array.shape == tensor.shape
        value = torch.from_numpy(np.array(array))
        torch.testing.assert_close(value, tensor.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.slow
def test_graphs_of_every_origin(make):
    model, tokens = everyday()
    expected = model(tokens)
    run = JaxInterpreter(make(model, tokens))
    array = jnp.asarray(tokens.numpy())  # int32, as JAX has it by default
    assert_close(run(array), expected)
    assert_close(jax.jit(run)(array), expected)
    with jax.enable_x64(True):
        assert_close(jax.jit(run)(tokens.numpy()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_gradients_are_those_of_autograd(make):
    model, tokens = everyday()
    (model(tokens)["logits"] ** 2).mean().backward()
    run = JaxInterpreter(make(model, tokens))

    def loss(weights):
        return (run.call(run.state | weights, tokens.numpy())["logits"] ** 2).mean()

    weights = {n: a for n, a in run.state.items() if jnp.issubdtype(a.dtype, jnp.inexact)}
    gradients = jax.jit(jax.grad(loss))(weights)
    wanted = {tuple(p.shape): p.grad for p in model.parameters() if p.grad is not None}
    assert len(weights) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        if name in gradients:
            assert_close(gradients[name], parameter.grad)
    for gradient in gradients.values():
        assert gradient.shape in wanted


@pytest.mark.slow
def test_vmap_and_forward_mode():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    run = JaxInterpreter(fx.symbolic_trace(model))
    x, v = torch.randn(5, 3), torch.randn(5, 3)
    expected, tangent = torch.func.jvp(model, (x,), (v,))
    assert_close(jax.jit(jax.vmap(run))(x.numpy()), expected)
    assert_close(jax.vmap(run)(x.numpy()), expected)
    assert_close(jax.jvp(run, (jnp.asarray(x.numpy()),), (jnp.asarray(v.numpy()),))[1], tangent)
    hessian = jax.hessian(lambda x: run(x).sum())(jnp.asarray(x[0].numpy()))
    assert_close(hessian, torch.func.hessian(lambda x: model(x).sum())(x[0]))


def test_a_sharded_batch_stays_sharded():
    model = nn.Linear(3, 4)
    run = JaxInterpreter(fx.symbolic_trace(model))
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    x = torch.randn(4 * len(jax.devices()), 3)
    result = jax.jit(run, out_shardings=sharding)(jax.device_put(x.numpy(), sharding))
    assert result.sharding == sharding
    assert_close(result, model(x))


def test_state_is_read_or_given_and_ties_stay_tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    graph = fx.symbolic_trace(model)
    x = torch.randn(2, 3)
    run = JaxInterpreter(graph)
    assert set(run.state) == {"0.weight", "0.bias", "1.bias"}
    weight = torch.randn(3, 3)
    given = JaxInterpreter(graph, {"1.weight": jnp.asarray(weight.numpy())})
    with torch.no_grad():
        before = model(x)
        model[0].weight.copy_(weight)
    assert_close(run(x.numpy()), before)
    assert_close(given(x.numpy()), model(x))
    with pytest.raises(KeyError, match="nowhere"):
        JaxInterpreter(graph, {"nowhere": jnp.ones(3)})
    with pytest.raises(KeyError, match="nowhere"):
        run.call({"nowhere": jnp.ones(3)}, x.numpy())


def test_statistics_come_back_as_state():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    x = torch.randn(6, 3)
    run = JaxInterpreter(fx.symbolic_trace(model))
    result, state = jax.jit(run.call_stateful)(run.state, x.numpy())
    expected = model(x)
    assert_close(result, expected)
    for name, value in model.state_dict().items():
        assert_close(state[name], value)
    assert_close(run.state["1.running_mean"], torch.zeros(4))  # and nothing else has changed


def writes(x):
    y = x.view(-1)[2:]
    y.mul_(2)
    x[:, 1] = 7
    return x.t(), y


def test_views_and_writes_to_them():
    x = torch.arange(6.0).view(2, 3)
    graph = make_fx(writes)(x.clone())
    array = jnp.asarray(x.numpy())
    result = jax.jit(JaxInterpreter(graph))(array)
    assert_close(result, writes(x.clone()))
    assert_close(array, x)


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() + torch.ones(4), lambda x: x.cos(), (x,))


def loop(x):
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))


def running(x):
    return scan(lambda c, a: (c + a, c * a), torch.zeros(()), x)


def mapped(x):
    return hop_map(lambda a: a * 2 + 1, x.view(2, 2))


def attention(x):
    q = x.view(1, 1, 4, 1)
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s, -1e9))


CONTROL_FLOW = {
    "cond": (branch, "cond"), "while_loop": (loop, "while"), "scan": (running, "scan"),
    "map": (mapped, "scan"), "flex_attention": (attention, None),
}  # fmt: skip


@pytest.mark.parametrize("function, primitive", CONTROL_FLOW.values(), ids=CONTROL_FLOW)
@pytest.mark.slow
def test_higher_order_operators_become_jax_control_flow(function, primitive):
    x = torch.arange(-1.0, 3.0)
    run = JaxInterpreter(torch.export.export(Function(function), (x,)))
    for value in (x, -x):
        expected = function(value)
        assert_close(jax.jit(run)(value.numpy()), expected)
        assert_close(run(value.numpy()), expected)
    if primitive is not None:
        assert primitive in str(jax.make_jaxpr(run)(x.numpy()))


def captured_graphs(function, *args):
    """The graphs that Dynamo makes of a function, of PyTorch's functions."""
    found = []

    def backend(graph, _examples):
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*args)
    return found


@pytest.mark.slow
def test_checkpoint_is_computed_again_under_jax_grad():
    def function(x):
        return checkpoint(lambda a: a.sin().cos(), x, use_reentrant=False) * 2

    x = torch.randn(4)
    (graph,) = captured_graphs(function, x)
    run = JaxInterpreter(graph)
    array = jnp.asarray(x.numpy())
    (result,) = run(array)
    assert_close(result, function(x))
    names = [equation.primitive.name for equation in jax.make_jaxpr(run)(array).jaxpr.eqns]
    assert "remat2" in names or "checkpoint" in names
    leaf = x.clone().requires_grad_()
    function(leaf).sum().backward()
    assert_close(jax.grad(lambda x: run(x)[0].sum())(array), leaf.grad)


def test_a_subgraph_called_twice():
    @torch.compiler.nested_compile_region
    def part(x):
        return x.sin() + 1

    def function(x):
        return part(x) + part(x * 2)

    x = torch.randn(4)
    (graph,) = captured_graphs(function, x)
    assert any("invoke_subgraph" in str(node.target) for node in graph.graph.nodes)
    assert_close(jax.jit(JaxInterpreter(graph))(x.numpy())[0], function(x))


def test_autocast_and_no_grad_within_a_graph():
    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
        with torch.no_grad():
            return y, y.float() @ x

    x = torch.randn(4, 4)
    (graph,) = captured_graphs(function, x)
    result = jax.jit(JaxInterpreter(graph))(x.numpy())
    assert result[0].dtype == jnp.bfloat16
    expected = function(x)
    for array, tensor in zip(result, expected, strict=True):
        got = torch.from_numpy(np.array(array.astype(jnp.float32)))
        torch.testing.assert_close(got, tensor.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_draws_come_from_a_key():
    run = JaxInterpreter(make_fx(lambda x: (F.dropout(x, 0.5), torch.rand_like(x)))(torch.ones(64)))
    x = jnp.ones(64)
    drop, noise = jax.jit(run)(x, key=jax.random.key(0))
    again, _ = run(x, key=jax.random.key(0))
    other, _ = run(x, key=jax.random.key(1))
    assert set(np.unique(drop)) == {0.0, 2.0}
    assert len(np.unique(noise)) > 60
    np.testing.assert_array_equal(drop, again)
    assert (np.asarray(drop) != np.asarray(other)).any()
    with pytest.raises(RuntimeError, match="key="):
        jax.jit(run)(x)
    torch.manual_seed(3)
    first = run(x)
    assert (np.asarray(first[0]) != np.asarray(run(x)[0])).any()
    torch.manual_seed(3)
    np.testing.assert_array_equal(first[1], run(x)[1])
    torch.manual_seed(3)
    eager = F.dropout(torch.ones(64, device="jax"), 0.5)
    np.testing.assert_array_equal(first[0], eager.cpu())


@pytest.mark.parametrize("size", [(3,), (2, 5)])
def test_named_and_nested_arguments(size):
    class Model(nn.Module):
        def forward(self, pair, *, scale, shift=None):
            return (pair["a"] - pair["b"][0]) * scale + (0 if shift is None else shift)

    a, b, scale, shift = (torch.randn(size) for _ in range(4))
    pair = {"a": a, "b": [b]}
    program = torch.export.export(Model(), (pair,), {"scale": scale, "shift": shift})
    run = JaxInterpreter(program)
    given = {"a": a.numpy(), "b": [b.numpy()]}
    expected = Model()(pair, scale=scale, shift=shift)
    assert_close(run(given, shift=shift.numpy(), scale=scale.numpy()), expected)
    plain = JaxInterpreter(fx.symbolic_trace(lambda x, y=2.0, z=None: x * y + z))
    assert_close(plain(a.numpy(), z=b.numpy()), a * 2 + b)
    with pytest.raises(TypeError, match="unknown"):
        plain(a.numpy(), unknown=1)


def test_the_result_of_a_pass():
    class Swap(fx.Transformer):
        def call_function(self, target, args, kwargs):
            return super().call_function(
                operator.sub if target is operator.add else target, args, kwargs
            )

    graph = Swap(fx.symbolic_trace(lambda x, y: x + y)).transform()
    assert_close(JaxInterpreter(graph)(np.ones(3), np.ones(3)), torch.zeros(3).double())


class Unserved(nn.Module):
    """Calls an operator that has no lowering."""

    def forward(self, x):
        return torch.ops.torch_jax_test.unserved(x)


def test_an_unsupported_node_names_itself_its_line_and_the_operator():
    with torch.library._scoped_library("torch_jax_test", "FRAGMENT") as library:
        library.define("unserved(Tensor x) -> Tensor")
        library.impl("unserved", lambda x: x.clone(), "CPU")
        library.impl("unserved", lambda x: torch.empty_like(x), "Meta")
        graph = torch.export.export(Unserved(), (torch.ones(3),))
        for run in (JaxInterpreter(graph), jax.jit(JaxInterpreter(graph))):
            with pytest.raises(OperatorNotFound) as error:
                run(jnp.ones(3))
            text = str(error.value)
            assert "torch_jax_test.unserved" in text and "While executing %unserved" in text
            assert "test_interpreter.py" in text and "ops.torch_jax_test.unserved(x)" in text
        with pytest.raises(OperatorNotFound, match="outside of the graph"):
            with config.temporarily("cpu_fallback", "warn"):
                run(jnp.ones(3))


def test_values_asked_for_under_a_trace():
    graph = make_fx(lambda x: x.nonzero())(torch.ones(3))
    assert_close(JaxInterpreter(graph)(jnp.ones(3)), torch.ones(3).nonzero())
    with pytest.raises(DataDependentError, match="nonzero_static"):
        jax.jit(JaxInterpreter(graph))(jnp.ones(3))


def test_what_it_does_not_take():
    with pytest.raises(TypeError, match=r"symbolic_trace"):
        JaxInterpreter(nn.Linear(2, 2))
    run = JaxInterpreter(fx.symbolic_trace(nn.Linear(2, 2)))
    with pytest.raises(TypeError, match=r"jax.Arrays, not tensors"):
        run(torch.ones(2))


@pytest.mark.parametrize("whole", [True, False], ids=["export", "fx"])
def test_too_many_arguments_and_too_few(whole):
    model, x = nn.Linear(2, 2), jnp.ones((1, 2))
    graph = torch.export.export(model, (torch.ones(1, 2),)) if whole else fx.symbolic_trace(model)
    run = JaxInterpreter(graph)
    for given in ((), (x, x)):
        with pytest.raises(TypeError, match=r"the graph takes 1 inputs, not|are missing"):
            run(*given)


def test_a_graph_of_any_number_of_arguments():
    class Sum(nn.Module):
        def forward(self, *xs):
            return xs[0] + xs[1]

    ones = jnp.ones(2)
    np.testing.assert_array_equal(JaxInterpreter(fx.symbolic_trace(Sum()))(ones, ones), ones * 2)


@pytest.mark.slow
def test_what_was_traced_before_the_first_interpreter_is_no_harm():
    code = """
import jax, numpy, torch, torch_jax
from torch.fx.experimental.proxy_tensor import make_fx
x = torch.randn(2, 5, 3)
x.to("jax").argmax(-1)
graph = make_fx(lambda x: x.argmax(-1))(x)
found = jax.jit(torch_jax.JaxInterpreter(graph))(jax.numpy.asarray(x.numpy()))
assert numpy.array_equal(found, x.argmax(-1).numpy())
"""
    output("-c", code, new=True)


def test_what_fx_notes_for_a_trace_on_another_thread_stays():
    seen = []

    def note(x):
        seen.append(dict(fx_traceback.get_current_meta()))
        return x + 1

    graph = torch.fx.Graph()
    node = graph.call_function(note, (graph.placeholder("x"),))
    node.meta["stack_trace"] = "a line"
    graph.output(node)
    with fx_traceback.preserve_node_meta():
        JaxInterpreter(torch.fx.GraphModule(torch.nn.Module(), graph))(jnp.ones(2))
    assert seen == [{}]
