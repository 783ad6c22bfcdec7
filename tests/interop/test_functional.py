"""Modules as functions of their parameters and buffers."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_jax import NotTraceableError, functional, load_functional
from torch_jax.memory import storage


class Tied(nn.Module):
    """Tokens to logits, with a tie, a constant that is no buffer, and other methods."""

    def __init__(self):
        super().__init__()
        self.emb, self.lstm = nn.Embedding(10, 8), nn.LSTM(8, 8, batch_first=True)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 10, bias=False)
        self.head.weight = self.emb.weight
        self.places = torch.arange(10)
        self.register_buffer("order", torch.arange(9, -1, -1), persistent=False)

    def forward(self, tokens):
        return self.head(self.drop(self.lstm(self.embed(tokens))[0]))

    def embed(self, tokens):
        index = self.places[tokens] if self.places.device.type == "cpu" else tokens
        return self.emb(torch.gather(self.order, 0, index.flatten().long()).view(tokens.shape))


def close(actual, expected, **tolerances):
    np.testing.assert_allclose(
        actual, expected.detach().numpy(), **(tolerances or {"rtol": 2e-5, "atol": 1e-6})
    )


def images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 1, 8, 8, generator=generator)
    return x, torch.randint(10, (8,), generator=generator)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(144, 10),
    )  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_training_by_optax(device):
    net = network()
    expected, x, y = copy.deepcopy(net), *images()
    fn, params, buffers = functional(net.to(device))
    optimizer = optax.adam(1e-2)

    def loss(params, buffers, x, y):
        logits, buffers = fn(params, buffers, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), buffers

    @jax.jit
    def train(params, buffers):
        def step(carry, _):
            params, buffers, state = carry
            (value, buffers), slopes = jax.value_and_grad(loss, has_aux=True)(
                params, buffers, jnp.asarray(x), jnp.asarray(y.int())
            )
            updates, state = optimizer.update(slopes, state)
            return (optax.apply_updates(params, updates), buffers, state), value

        return jax.lax.scan(step, (params, buffers, optimizer.init(params)), length=4)

    (params, buffers, _), losses = train(params, buffers)
    adam, wanted = torch.optim.Adam(expected.parameters(), lr=1e-2), []
    for _ in range(4):
        adam.zero_grad()
        wanted.append(F.cross_entropy(expected(x), y))
        wanted[-1].backward()
        adam.step()
    close(losses, torch.stack(wanted), rtol=1e-4)
    before = net.state_dict()["1.running_mean"].clone()
    assert before.abs().max() == 0  # nothing has been written yet
    load_functional(net, params, buffers)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name].cpu(), tensor, rtol=1e-3, atol=1e-5)


def test_arrays_are_the_module_s_own():
    net = network().to("jax")
    _, params, buffers = functional(net)
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for name, array in (params | buffers).items():
        if tensors[name].dtype != torch.int64:  # which a program without x64 has as int32
            assert array is storage.memory_of(tensors[name])
    with jax.enable_x64(True):
        assert functional(net)[2]["1.num_batches_tracked"].dtype == np.int64
    new = jax.tree.map(lambda a: a + 1, params)
    load_functional(net, new)
    for name, parameter in net.named_parameters():
        assert storage.memory_of(parameter) is new[name]


@pytest.mark.slow
def test_ties_methods_and_modules_on_the_cpu():
    torch.manual_seed(0)
    net = Tied().eval()
    fn, params, buffers = functional(net)
    assert "head.weight" not in params and list(buffers) == ["order"]
    tokens = torch.tensor([[1, 2, 3], [7, 8, 9]])
    x = jnp.asarray(tokens.int())
    close(jax.jit(fn)(params, buffers, x)[0], net(tokens))
    for method in ("embed", Tied.embed, lambda module, tokens: module.embed(tokens)):
        close(fn(params, buffers, x, method=method)[0], net.embed(tokens))
    slopes = jax.jit(jax.grad(lambda params: (fn(params, buffers, x)[0] ** 2).sum()))(params)
    (net(tokens) ** 2).sum().backward()
    for name, parameter in net.named_parameters():
        close(slopes[name], parameter.grad, rtol=1e-4, atol=1e-6)
    stacked = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), params)
    both = jax.vmap(lambda params: fn(params, buffers, x)[0])(stacked)
    close(both[0], net(tokens))
    doubled = copy.deepcopy(net)
    for parameter in doubled.parameters():
        parameter.data.mul_(2)
    close(both[1], doubled(tokens))


class Held(nn.Module):
    """Uses tensors of the CPU: lengths, which stay there, a factor, one that changes."""

    def __init__(self):
        super().__init__()
        self.lengths, self.factor = torch.tensor([2, 1]), torch.tensor([3.0])

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, self.lengths, batch_first=True).data
        step = torch.ones(1, device="cpu")
        first = x + step
        return packed * self.factor, first, x + step.fill_(2)


def test_tensors_of_the_cpu_that_a_module_holds():
    net, x = Held(), torch.randn(2, 2, 1)
    fn, params, buffers = functional(net)
    for actual, expected in zip(fn(params, buffers, jnp.asarray(x))[0], net(x), strict=True):
        close(actual, expected)


@pytest.mark.slow
def test_modes_and_keys():
    net = Tied()
    train, params, buffers = functional(net)
    evaluate, *_ = functional(net.eval())
    tokens, key = jnp.ones((2, 3), int), jax.random.key(0)
    with pytest.raises(NotTraceableError, match="rng=jax.random.key"):
        jax.jit(train)(params, buffers, tokens)
    dropped = jax.jit(train)(params, buffers, tokens, rng=key)[0]
    np.testing.assert_allclose(train(params, buffers, tokens, rng=key)[0], dropped, rtol=1e-5)
    assert (dropped != evaluate(params, buffers, tokens)[0]).any()
    assert not net.training and not net.drop.training


@pytest.mark.slow
def test_frozen_parameters_take_no_part():
    net = network()
    net[0].requires_grad_(False)
    fn, params, buffers = functional(net)
    assert "0.weight" in buffers and "0.weight" not in params
    x = jnp.ones((2, 1, 8, 8))
    slopes = jax.grad(lambda b, p: fn(p, b, x)[0].sum(), allow_int=True)(buffers, params)
    assert (slopes["0.weight"] == 0).all()
    _, after = fn(params, buffers, x)
    assert after["0.weight"] is buffers["0.weight"] and after["1.num_batches_tracked"] == 1


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_parametrizations_and_hooks(norm):
    torch.manual_seed(0)
    net = getattr(nn.utils.parametrizations, norm)(nn.Linear(4, 3))
    seen = []
    net.register_forward_hook(lambda module, args, out: seen.append(1) or out * 2)
    fn, params, buffers = functional(net)
    x = torch.randn(2, 4)
    out, after = jax.jit(fn)(params, buffers, jnp.asarray(x))
    close(out, net(x))
    assert len(seen) >= 2
    for name, buffer in net.named_buffers():
        close(after[name], buffer)


def test_modules_on_meta():
    with torch.device("meta"):
        skeleton = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))
        skeleton[2].weight = nn.Parameter(torch.empty(3, 4))
    fn, shapes, buffers = functional(skeleton)
    assert shapes["0.weight"].shape == (4, 3) and not buffers
    params = {name: jnp.full(shape.shape, 0.5) for name, shape in shapes.items()}
    out = jax.jit(fn)(params, buffers, jnp.ones((2, 3)))[0]
    load_functional(skeleton, params)
    assert skeleton[0].weight.device.type == "jax" and isinstance(skeleton[0].weight, nn.Parameter)
    close(out, skeleton(torch.ones(2, 3, device="jax")).cpu())


def test_the_module_may_leave_its_memory():
    net = nn.Linear(3, 2, device="jax")
    fn, params, buffers = functional(net)
    before = fn(params, buffers, jnp.ones((1, 3)))[0]
    net.to("meta")
    np.testing.assert_array_equal(jax.jit(fn)(params, buffers, jnp.ones((1, 3)))[0], before)


def test_second_derivatives_of_a_module():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    fn, params, buffers = functional(net)

    def penalty(params, x):
        slopes = jax.grad(lambda x: fn(params, buffers, x)[0].sum())(x)
        return (slopes**2).sum()

    x = torch.randn(5, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    (slope**2).sum().backward()
    found = jax.jit(jax.grad(penalty))(params, jnp.asarray(x.detach()))
    for name, parameter in net.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        close(found[name], expected)


@pytest.mark.slow
def test_forward_mode():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    by_jax, params, buffers = functional(net, derivatives="jax")
    by_torch, *_ = functional(net)
    x = jnp.asarray(torch.randn(5, 3))

    def loss(fn, x):
        return (fn(params, buffers, x)[0] ** 2).sum()

    slope = jax.grad(loss, 1)(by_torch, x)
    along = jax.jit(jax.jvp, static_argnums=0)(lambda x: loss(by_jax, x), (x,), (jnp.cos(x),))[1]
    np.testing.assert_allclose(along, (slope * jnp.cos(x)).sum(), rtol=1e-4)


def test_donated_arrays_come_back():
    net = nn.Linear(3, 2, device="jax")
    fn, params, buffers = functional(net)
    step = jax.jit(lambda params: jax.tree.map(lambda a: a + 1, params), donate_argnums=0)
    params = step(params)
    with pytest.raises(RuntimeError, match="deleted|donated"):
        net(torch.ones(1, 3, device="jax"))
    load_functional(net, params)
    close(fn(params, buffers, jnp.ones((1, 3)))[0], net(torch.ones(1, 3, device="jax")).cpu())


# --- what cannot be -------------------------------------------------------------------------------


def test_wrong_trees():
    net = nn.Linear(3, 2)
    fn, params, buffers = functional(net)
    x = jnp.ones((1, 3))
    for given, message in (
        ({"weight": params["weight"]}, r'Missing key\(s\) in state_dict: "bias"'),
        (params | {"scale": x}, r'Unexpected key\(s\) in state_dict: "scale"'),
        (params | {"bias": jnp.ones(5)}, r"size mismatch for bias: .*\[5\].*\[2\]"),
        (params | {"bias": jnp.ones(2, int)}, "dtype mismatch for bias: int32"),
        (params | {"bias": net.bias}, "bias is a Parameter, where an array is wanted"),
    ):
        with pytest.raises(RuntimeError, match=message):
            fn(given, buffers, x)
        with pytest.raises(RuntimeError, match=message):
            load_functional(net, given)
    with pytest.raises(TypeError, match="a dict of arrays by name"):
        fn(list(params.values()), buffers, x)
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    assert fn(half, buffers, x.astype(jnp.bfloat16))[0].dtype == jnp.bfloat16


def test_lazy_modules_are_refused():
    with pytest.raises(RuntimeError, match="'weight' of LazyLinear has no shape yet"):
        functional(nn.LazyLinear(3))
    with pytest.raises(TypeError, match="to_jax_function"):
        functional(torch.sin)


def test_written_parameters_are_refused():
    net = nn.Embedding(4, 3, max_norm=0.1)
    fn, params, buffers = functional(net)
    with pytest.raises(NotTraceableError, match="writes to its parameter 'weight'"):
        jax.jit(fn)(params, buffers, jnp.arange(3))
    net.requires_grad_(False)
    fn, params, buffers = functional(net)
    _, after = fn(params, buffers, jnp.arange(3))
    net(torch.arange(3))
    close(after["weight"], net.weight)


def test_the_module_is_as_it_was_after_errors():
    net = network().train()
    before = dict(net.named_parameters()), net.state_dict()
    fn, params, buffers = functional(net)
    net.eval()
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(RuntimeError, match="channel"):
            wrap(fn)(params, buffers, jnp.ones((2, 3, 8, 8)))
    assert not net.training
    for name, parameter in net.named_parameters():
        assert parameter is before[0][name]
    assert net[1].num_batches_tracked == 0


def test_attributes_are_no_state():
    class Counting(nn.Module):
        last = None

        def __init__(self):
            super().__init__()
            self.weight, self.total = nn.Parameter(torch.ones(2)), torch.zeros(2)

        def forward(self, x):
            self.last = x * self.weight
            self.total = self.total + x
            return self.last

    net = Counting()
    fn, params, buffers = functional(net)
    with pytest.warns(
        UserWarning, match=r"Counting.(last|total) is set to a tensor.*register_buffer"
    ):
        jax.jit(fn)(params, buffers, jnp.ones(2))
    assert net.last is None and net.total.tolist() == [0, 0]


@pytest.mark.slow
def test_models_of_transformers_with_caches_and_checkpoints():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=100,
    )  # fmt: skip
    net = LlamaForCausalLM(config).eval()
    fn, params, buffers = functional(net)
    tokens = torch.randint(100, (2, 8))
    x = jnp.asarray(tokens.int())
    out, _ = jax.jit(fn)(params, buffers, input_ids=x)
    expected = net(tokens)
    close(out.logits, expected.logits)
    step, _ = jax.jit(fn)(params, buffers, input_ids=x[:, :1], cache=out.cache)
    again = net(tokens[:, :1], cache=expected.cache)
    close(step.logits, again.logits)
    net.train().gradient_checkpointing_enable()
    fn, params, buffers = functional(net)

    def loss(params):
        return fn(params, buffers, input_ids=x, labels=x, use_cache=False)[0].loss

    value, slopes = jax.jit(jax.value_and_grad(loss))(params)
    wanted = net(tokens, labels=tokens, use_cache=False).loss
    wanted.backward()
    close(value, wanted)
    for name, parameter in net.named_parameters():
        close(slopes[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_what_stands_in_place_of_a_method_has_the_parameters_too():
    """A function that closes over a submodule, as libraries put in place of ``forward``."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    original = model[0].forward
    model[0].forward = lambda x: original(x) * 2
    model(torch.ones(2, 3)).sum().backward()
    fn, params, buffers = functional(model)
    slopes = jax.grad(lambda params: fn(params, buffers, jnp.ones((2, 3)))[0].sum())(params)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(slopes[name], parameter.grad, rtol=1e-5)
