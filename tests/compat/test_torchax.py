"""torchax's names: its programs, and two known faults of such bridges."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from flax import linen
from torch import nn

from tests.support.compare import assert_same
from torch_jax import config
from torch_jax.compat import torchax
from torch_jax.compat.ax import (
    environment,
    export,
    flax,
    interop,
    operators,
    train,
    values,
)
from torch_jax.core.tracers import NotTraceableError
from torch_jax.environment.environment import default_env
from torch_jax.interop.functional import functional


@pytest.fixture(autouse=True)
def settings():
    """What an environment sets for the process."""
    before = {name: config.get(name) for name in ("redirect_default", "redirect_cuda")}
    yield
    for name, value in before.items():
        config.set(name, value)


def net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2))


def on_jax(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape).to("jax")


# --- values ---------------------------------------------------------------------------------------


def test_tensors_are_plain_and_have_torchaxs_methods():
    env = torchax.enable_globally()
    x = on_jax(2, 2).requires_grad_()
    assert type(x) is torch.Tensor and isinstance(x, environment.Tensor)
    assert not isinstance(torch.ones(1), environment.Tensor) and torch.ones(1).device.type == "cpu"
    assert isinstance(x.jax(), jax.Array) and x.jax_device == jax.devices()[0]
    assert torch.ones(2).jax().device.type == "jax" and x.torch().device.type == "cpu"
    assert_same(x.apply_jax(jnp.sin), x.detach().cpu().sin())
    y = on_jax(2, 2)
    assert y.apply_jax_(jnp.transpose) is y and y.tolist() == on_jax(2, 2).T.tolist()
    assert env.to_xla({"a": torch.ones(2)})["a"].device.type == "jax"
    assert env.t2j_copy([torch.arange(2)])[0].dtype == jnp.int32 == values.t2j_dtype(torch.int32)
    assert env.j2t_copy(jnp.ones(2)).device.type == "cpu"
    assert torch.ones(1, device="cuda").device.type == "jax"
    torchax.disable_globally()
    assert environment.Tensor(jnp.ones(2), env, requires_grad=True).requires_grad


def test_values_and_functions_change_sides():
    x = on_jax(3)
    assert interop.torch_view(jnp.dtype("int32")) == torch.int32
    assert interop.jax_view(torch.int32) == jnp.int32
    assert_same(interop.torch_view(jnp.sin)(x), x.cpu().sin())
    assert_same(interop.torch_view(jax.jit(interop.jax_view(torch.cos))(x.jax())), x.cos().cpu())
    assert interop.call_torch(torch.cos, x.jax()).tolist() == pytest.approx(x.cos().tolist())
    doubled = interop.fori_loop(0, 3, lambda i, a: a * 2, x)
    assert doubled.tolist() == (x * 8).tolist()
    through = interop.j2t_autograd(lambda a, b: jnp.sum(a * b["c"]))
    weight = on_jax(3).requires_grad_()
    through(weight, {"c": x}).backward()
    assert weight.grad.tolist() == x.tolist()


def test_gradients_are_pytorchs():
    def loss(x):
        return (x * x.detach()).sum()

    value, gradient = interop.jax_value_and_grad(loss)(on_jax(3))
    assert_same(value, (on_jax(3).cpu() ** 2).sum())
    assert_same(gradient, on_jax(3).cpu())
    again = interop.jax_value_and_grad(interop.gradient_checkpoint(loss))
    assert_same(again(on_jax(3))[1], on_jax(3).cpu())

    def kinks(x):
        rows = torch.nn.functional.embedding(torch.arange(2, device="jax"), x, padding_idx=1)
        return rows.relu().sum() + (x * 0).norm()

    at = torch.tensor([[0.0, 2.0], [3.0, 4.0]], device="jax")
    assert interop.jax_value_and_grad(kinks)(at)[1].tolist() == [[0.0, 1.0], [0.0, 0.0]]

    def stops(x):
        with torch.no_grad():
            factor = x * 2
        return (x * factor).sum()

    assert_same(interop.jax_value_and_grad(stops)(on_jax(3))[1], on_jax(3).cpu() * 2)
    with pytest.raises(NotTraceableError, match="autograd.Function"):
        interop.jax_value_and_grad(lambda x: _Ste.apply(x).sum())(on_jax(3))
    assert interop.jax_jit(_Ste.apply)(on_jax(3)).tolist() == [-1.0, 0.0, 1.0]
    with pytest.raises(NotTraceableError, match="through what detach"):
        interop.jax_jit(lambda x: x.detach().add_(1))(on_jax(3))


class _Ste(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.slow
def test_functions_that_users_trace_themselves():
    env, model = torchax.default_env(), net().to("jax")
    states, call = torchax.extract_jax(model)
    x = on_jax(4, 3)
    assert_same(interop.torch_view(jax.jit(call)(states, (x.jax(),))), model(x).detach().cpu())

    def loss(weights, x):
        weights, x = interop.torch_view((weights, x))
        with env:
            result = torch.func.functional_call(model, weights, (x,))
            return interop.jax_view((result * result.detach()).sum())

    def expected(weights, x):
        result = call(weights, (x,))
        return (result * jax.lax.stop_gradient(result)).sum()

    found = jax.jit(jax.grad(loss))(states, x.jax())
    wanted = jax.grad(expected)(states, x.jax())
    jax.tree.map(functools.partial(jnp.allclose, atol=1e-6), found, wanted)
    assert all(jnp.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)


# --- training -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_step_is_that_of_optax():
    model = net().to("jax")
    module = interop.JittableModule(model)
    optimizer = optax.adam(0.1)
    step = train.make_train_step(
        lambda weights, buffers, x: module.functional_call("forward", weights, buffers, x),
        F.cross_entropy,
        optimizer,
        remat_policy=jax.checkpoint_policies.nothing_saveable,
    )
    step = interop.jax_jit(step, kwargs_for_jax_jit={"donate_argnums": (2,)})
    weights, state = module.params, interop.call_jax(optimizer.init, module.params)
    x, y = on_jax(4, 3), torch.tensor([0, 1, 0, 1]).to("jax")
    reference = net()
    theirs = torch.optim.Adam(reference.parameters(), lr=0.1)
    for _ in range(3):
        loss, weights, state = step(weights, module.buffers, state, x, y)
        theirs.zero_grad()
        wanted = F.cross_entropy(reference(x.cpu()), y.cpu())
        wanted.backward()
        theirs.step()
        assert_same(loss, wanted.detach(), scale=5)
    assert type(state[0]).__name__ == "ScaleByAdamState" and state[0].count.item() == 3


@pytest.mark.slow
def test_layers_are_scanned():
    layers = [nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).to("jax") for _ in range(3)]
    scanned, x = train.ScannedModule(layers), on_jax(2, 3)
    assert set(scanned.params) == {"0___weight", "0___bias"}
    scanned.eval()
    for layer in layers:
        layer.eval()
    wanted = functools.reduce(lambda value, layer: layer(value), layers, x)
    scanned.c.one_mod.eval()
    assert_same(scanned(x).detach(), wanted.detach().cpu())
    scanned(x).sum().backward()
    wanted.sum().backward()
    stacked = torch.stack([layer[0].weight.grad for layer in layers])
    assert_same(scanned.params["0___weight"].grad, stacked.cpu())
    scanned.c.one_mod.train()
    masks = {tuple(scanned(x).detach().flatten().tolist()) for _ in range(3)}
    assert len(masks) == 3


@pytest.mark.slow
def test_compiled_modules_train_and_keep_their_class():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to("jax")
    compiled, x = torchax.compile(model), on_jax(4, 3)
    assert isinstance(compiled, nn.Sequential) and len(compiled) == 2
    for _ in range(3):
        compiled(x).square().sum().backward()
    assert model[0].weight.grad is not None and model[1].num_batches_tracked.item() == 3
    with pytest.raises(RuntimeError, match="torch_jax.export"):
        torchax.compile(model, torchax.CompileOptions(mode="export"))
    by_jax = torchax.compile(model.eval(), torchax.CompileOptions(jax_jit_kwargs={"inline": True}))
    assert_same(by_jax(x), model(x).detach().cpu())


# --- two threads, and dropout ---------------------------------------------------------------------


def test_another_thread_computes_the_same():
    env, model, x = torchax.default_env(), net().to("jax"), on_jax(4, 3)
    found = []
    with env:
        expected = model(x)
        thread = threading.Thread(target=lambda: found.append(model(x) + 1))
        thread.start()
        thread.join()
    assert_same(found[0].detach(), (expected + 1).detach().cpu())


def test_calls_that_exchange_the_tensors_of_a_module_take_turns():
    model, others_entered = net().to("jax"), threading.Event()
    fn, params, buffers = functional(model)
    other = threading.Thread(
        target=fn, args=(params, buffers), kwargs={"method": lambda _: others_entered.set()}
    )

    def hold(_: nn.Module) -> bool:
        other.start()
        return others_entered.wait(0.2)

    weights = dict(model.named_parameters())
    assert not interop.JittableModule(model).functional_call(hold, weights, {})
    other.join()
    assert others_entered.is_set()


@pytest.mark.slow
def test_dropout_differs_from_call_to_call():
    ones = torch.ones(64).to("jax")
    drop = interop.jax_jit(lambda x: F.dropout(x, 0.5))
    torch.manual_seed(0)
    first, second = drop(ones), drop(ones)
    assert first.tolist() != second.tolist()
    torch.manual_seed(0)
    assert drop(ones).tolist() == first.tolist()

    env = torchax.default_env()
    keyed = interop.jax_jit(lambda x: x * 0 + interop.torch_view(_uniform(env)))
    assert keyed(ones).tolist() != keyed(ones).tolist()

    module = interop.JittableModule(net(0.5).to("jax"))
    key = jax.random.key_data(jax.random.key(1))

    def call(key):
        args = module.params, module.buffers, key, on_jax(4, 3)
        return module.functional_call("forward", *args).tolist()

    assert call(key) == call(key) != call(jax.random.key(2))


def _uniform(env):
    return jax.random.uniform(env.get_and_rotate_prng_key(), (64,))


def test_a_mask_is_never_a_constant():
    env, drop = torchax.default_env(), functools.partial(F.dropout, p=0.5)

    def raw(x):
        with env:
            return interop.jax_view(drop(interop.torch_view(x)))

    def keyed(x, key):
        with env.override_property(prng=key):
            return interop.jax_view(drop(interop.torch_view(x)))

    with pytest.raises(NotTraceableError, match="draws random numbers"):
        jax.jit(raw)(jnp.ones(4))
    with pytest.raises(NotTraceableError, match="draws random numbers"):
        interop.torch_view(jax.lax.scan)(lambda c, x: (drop(c), x), on_jax(4), on_jax(2))
    step, ones = jax.jit(keyed), jnp.ones(64)
    one, other = step(ones, jax.random.key(0)), step(ones, jax.random.key(1))
    assert one.tolist() != other.tolist()


# --- operators and files --------------------------------------------------------------------------


def test_operators_are_replaced():
    x = on_jax(3)
    operators.op(torch.ops.aten.erfc)(lambda x: x + 1)
    operators.register_function(F.hardswish, is_jax_function=False)(lambda x: x + 2)
    operators.register_jax_composite("my_digamma", lambda x: x + 3, torch.ops.aten.digamma)
    torchax.default_env().override_op_definition(torch.ops.aten.erfinv, lambda x: x + 4)
    targets = torch.ops.aten.erfc, F.hardswish, torch.ops.aten.digamma, torch.ops.aten.erfinv
    try:
        found = torch.erfc(x), F.hardswish(x), torch.digamma(x), torch.erfinv(x)
        for number, one in enumerate(found, start=1):
            assert one.tolist() == (x + number).tolist()
    finally:
        for target in targets:
            default_env().remove_override(target)


@pytest.mark.slow
def test_exports_flax_and_checkpoints(tmp_path):
    model, x = net().eval(), torch.ones(4, 3)
    program = torch.export.export(model, (x,))
    weights, function = export.exported_program_to_jax(program)
    assert_same(interop.torch_view(function(weights, (x.numpy(),))[0]), model(x).detach())
    weights, exported = export.exported_program_to_stablehlo(program)
    assert "stablehlo" in exported.mlir_module() and len(weights) == 4

    dense = flax.FlaxNNModule(torchax.default_env(), linen.Dense(2), (x,))
    dense(x.to("jax")).sum().backward()
    assert all(parameter.grad is not None for parameter in dense.parameters())

    torchax.save_checkpoint({"model": model.state_dict(), "epoch": 3}, str(tmp_path / "a"), step=1)
    state = torchax.load_checkpoint(str(tmp_path / "a"))
    assert state["epoch"] == 3 and state["model"]["0.weight"].shape == (8, 3)
    torch.save(model.state_dict(), tmp_path / "b.pt")
    assert isinstance(torchax.load_checkpoint(str(tmp_path / "b.pt"))["0.bias"], jax.Array)
    with pytest.raises(FileNotFoundError):
        torchax.load_checkpoint(str(tmp_path / "c"))


class _TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, y):
        return torch.relu(self.layer(x)) + y * x.shape[0], torch.cat([x, x]).sum(0)


def test_sizes_that_may_change_stay_open():
    model, size = _TwoInputs(), torch.export.Dim("size", max=10)
    args = torch.ones(4, 3), torch.ones(2)
    program = torch.export.export(model, args, dynamic_shapes=({0: size}, None))
    weights, exported = export.exported_program_to_stablehlo(program)
    assert "tensor<?x3xf32>" in exported.mlir_module()
    _, function = export.exported_program_to_jax(program)
    for rows in (2, 7):
        x, y = torch.linspace(-1, 1, rows * 3).view(rows, 3), torch.ones(2)
        given = (x.numpy(), y.numpy())
        for run in (function, jax.jit(function), exported.call):
            for found, expected in zip(run(weights, given), model(x, y), strict=True):
                assert_same(interop.torch_view(found), expected.detach())
    with pytest.raises(ValueError, match="size|shape"):
        exported.call(weights, (jnp.ones((11, 3)), jnp.ones(2)))


def test_the_key_is_read_and_set():
    env = torchax.default_env()
    assert env.prng_key == env.param.prng == env.prng_key
    key = jax.random.PRNGKey(5)
    env.prng_key = key
    assert env.prng_key is env.param.prng is key
    first = torch.rand(2, device="jax").tolist()
    after = env.prng_key
    assert jax.random.key_data(after).tolist() != key.tolist()
    with env.override_property(prng=jax.random.key(3)):
        assert env.param.prng == jax.random.key(3)
        torch.rand(2, device="jax")
        assert env.param.prng != jax.random.key(3)
    assert env.prng_key == after
    env.param.prng = key
    assert torch.rand(2, device="jax").tolist() == first

    def draw(x):
        return [x + interop.torch_view(jax.random.uniform(env.prng_key, (2,))) for _ in range(2)]

    one, same = interop.jax_jit(draw)(on_jax(2))
    other, _ = interop.jax_jit(draw)(on_jax(2))
    assert one.tolist() == same.tolist() != other.tolist()
    with pytest.raises(RuntimeError, match="override_property"):
        jax.jit(lambda x: setattr(env, "prng_key", key))(jnp.ones(1))


def test_a_module_of_flax_takes_arrays():
    env, dense, x = torchax.default_env(), linen.Dense(2), jnp.ones((1, 3))
    expected = dense.apply(dense.init(env.prng_key, x), x)
    module = flax.FlaxNNModule(env, dense, (x,), {})
    found = module(x)
    assert_same(found, interop.torch_view(expected).cpu())
    assert module(np.ones((1, 3), np.float32)).tolist() == found.tolist()
    call = interop.jax_jit(lambda state, x: torch.func.functional_call(module, state, x))
    assert_same(call(module.state_dict(), torch.ones(1, 3).to("jax")), found.cpu())


def test_lists_of_one_length_are_merged():
    assert values.merge(*values.partition([1, "a", 2], lambda x: x == 1)) == [1, "a", 2]
    with pytest.raises(AssertionError, match="lists of 2 and of 1 elements"):
        values.merge([1, None], [1])


def test_a_module_still_moves():
    module = torch.nn.Linear(2, 3).jax().jax()
    assert module.weight.device.type == "jax"
    assert isinstance(module.weight.jax(), jax.Array)
