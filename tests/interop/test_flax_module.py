"""``torch_jax.nn_from_flax``: against flax alone, and as a module among PyTorch's."""

from __future__ import annotations

import copy
import io
import sys

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import linen, nnx
from torch import nn

import torch_jax
from tests.support import executors
from torch_jax import nn_from_flax
from torch_jax.interop import flax_module
from torch_jax.memory.storage import memory_of


class Net(linen.Module):
    """Statistics of batches, dropout, and a second method."""

    features: int = 4

    def setup(self):
        self.inner = linen.Dense(self.features)
        self.norm = linen.BatchNorm(momentum=0.5)
        self.drop = linen.Dropout(0.5)
        self.outer = linen.Dense(2)

    def __call__(self, x, train: bool):
        x = self.norm(self.encode(x), use_running_average=not train)
        return self.outer(self.drop(x, deterministic=not train))

    def encode(self, x):
        return jnp.tanh(self.inner(x))


class Graph(nnx.Module):
    """The same in nnx."""

    def __init__(self, rngs):
        self.inner = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.5, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(4, 2, rngs=rngs)])

    def __call__(self, x):
        return self.layers[0](self.drop(self.norm(self.encode(x))))

    def encode(self, x):
        return jnp.tanh(self.inner(x))


def numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def close(found: torch.Tensor, expected) -> None:
    np.testing.assert_allclose(numpy(found), np.asarray(expected), rtol=1e-5, atol=1e-6)


def x_of(device: str = "jax") -> torch.Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).to(device)


def linen_net():
    """A module of PyTorch's, the module of linen, and its variables."""
    variables = Net().init(jax.random.key(0), jnp.zeros((1, 3)), train=False)
    return nn_from_flax(Net(), variables=variables), Net(), variables


def key_drawn() -> jax.Array:
    """The key that the next call draws."""
    state = torch.jax.get_rng_state()
    words = numpy(flax_module._words())
    torch.jax.set_rng_state(state)
    return flax_module._key(jnp.asarray(words.astype(np.uint32)))


# --- linen ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_linen_in_training_and_evaluation():
    module, plain, variables = linen_net()
    x = x_of().requires_grad_()
    key = key_drawn()
    y = module(x)

    def loss(params, x):
        given = {**variables, "params": params}
        result, new = plain.apply(
            given, x, train=True, rngs={"params": key}, mutable=["batch_stats"]
        )
        return (result**2).sum(), (result, new)

    arguments = variables["params"], jnp.asarray(numpy(x))
    (grads, of_x), (expected, new) = jax.grad(loss, (0, 1), has_aux=True)(*arguments)
    y.square().sum().backward()
    close(y, expected)
    close(x.grad, of_x)
    flat = flax.traverse_util.flatten_dict(grads, sep=".")
    assert flat.keys() == dict(module.named_parameters()).keys()
    for name, parameter in module.named_parameters():
        close(parameter.grad, flat[name])
    for name, value in new["batch_stats"]["norm"].items():
        close(module.get_buffer(f"norm.{name}"), value)
    module.eval()
    before = [b.clone() for b in module.buffers()]
    close(module(x), plain.apply({**variables, **new}, arguments[1], train=False))
    close(module(x, train=False), plain.apply({**variables, **new}, arguments[1], train=False))
    assert all(torch.equal(a, b) for a, b in zip(before, module.buffers(), strict=True))


def test_names_and_state_dicts():
    module, _, variables = linen_net()
    state = module.state_dict()
    assert sorted(state) == sorted(
        ".".join(path)
        for tree in variables.values()
        for path in flax.traverse_util.flatten_dict(tree)
    )
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    torch.manual_seed(3)
    other = nn_from_flax(Net(), x_of("cpu"))
    assert not torch.equal(other.inner.kernel, module.inner.kernel)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other.eval()(x_of()), module.eval()(x_of()))


@pytest.mark.slow
def test_the_seed_makes_the_variables():
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(nn_from_flax(Net(), x_of()).inner.kernel)
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_collections_of_other_names():
    class Counter(linen.Module):
        @linen.compact
        def __call__(self, x):
            seen = self.variable("cache", "seen", lambda: jnp.zeros((), jnp.int32))
            scale = self.param("scale", lambda _: jnp.ones(()))
            kept = self.variable("other", "scale", lambda: jnp.full((), 2.0))
            if not self.is_initializing():
                seen.value += 1
            return x * scale * kept.value

    module = nn_from_flax(Counter(), x_of()).eval()
    for _ in range(3):
        y = module(x_of())
    assert module.seen.item() == 3 and torch.equal(y, x_of() * 2)
    assert sorted(module.state_dict()) == ["other_scale", "scale", "seen"]


def test_methods_and_errors_of_methods():
    module, plain, variables = linen_net()
    close(
        module.encode(x_of()), plain.apply(variables, jnp.asarray(numpy(x_of())), method="encode")
    )
    with pytest.raises(AttributeError, match="decode"):
        module.decode(x_of())


def test_integers_are_of_32_bits_in_flax():
    seen = []

    class Embed(linen.Module):
        @linen.compact
        def __call__(self, ids):
            seen.append((ids.dtype, (jnp.arange(3) + 0.5).dtype))
            return linen.Embed(7, 2)(ids)

    ids = torch.tensor([[1, 2], [6, 0]], device="jax")
    module = nn_from_flax(Embed(), ids)
    y = module(ids)
    y.sum().backward()
    assert set(seen) == {(np.dtype(np.int32), np.dtype(np.float32))}
    assert torch.equal(y, module.Embed_0.embedding[ids])


@pytest.mark.slow
def test_float64():
    module = nn_from_flax(linen.Dense(2, param_dtype=jnp.float64), x_of().double())
    assert module.kernel.dtype == torch.float64
    x = x_of().double().requires_grad_()
    assert torch.autograd.gradcheck(module, (x,))


@pytest.mark.slow
def test_second_derivatives():
    module = nn_from_flax(Graph(nnx.Rngs(0))).eval().double()
    x = x_of().double().requires_grad_()
    assert torch.autograd.gradgradcheck(module, (x,))


def test_whether_numbers_are_drawn_is_asked_for_each_form():
    class Wide(nnx.Module):
        def __init__(self, rngs):
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.drop(x) if x.shape[0] > 1 else x

    module = nn_from_flax(Wide(nnx.Rngs(0)))
    one, many = torch.ones(1, 99, device="jax"), torch.ones(2, 99, device="jax")
    assert torch.equal(module(one), one)
    assert not torch.equal(module(many), module(many))


# --- nnx ------------------------------------------------------------------------------------------


def test_nnx_in_training_and_evaluation():
    plain = Graph(nnx.Rngs(0))
    module = nn_from_flax(plain)
    assert sorted(module.state_dict()) == [
        "inner.bias", "inner.kernel", "layers.0.bias", "layers.0.kernel",
        "norm.bias", "norm.mean", "norm.scale", "norm.var",
    ]  # fmt: skip
    x = x_of()
    key = key_drawn()
    y = module(x)
    plain.drop.rngs.key[...] = jax.random.fold_in(key, 1)
    close(y, plain(jnp.asarray(numpy(x))))
    close(module.norm.mean, plain.norm.mean[...])
    plain.eval()
    close(module.eval()(x), plain(jnp.asarray(numpy(x))))
    close(module.encode(x), plain.encode(jnp.asarray(numpy(x))))


def test_gradients_of_nnx():
    plain = Graph(nnx.Rngs(0))
    module = nn_from_flax(plain).eval()
    plain.eval()
    x = x_of().requires_grad_()
    module(x).square().sum().backward()
    grads, of_x = nnx.grad(lambda m, x: (m(x) ** 2).sum(), argnums=(0, 1))(
        plain, jnp.asarray(numpy(x))
    )
    close(x.grad, of_x)
    found = {".".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(grads)}
    for name, parameter in module.named_parameters():
        close(parameter.grad, found[name])


def test_arrays_are_shared_and_never_changed_under_their_owner():
    plain = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    before = np.asarray(plain.kernel[...])
    module = nn_from_flax(plain)
    pointer = plain.kernel[...].unsafe_buffer_pointer()
    assert memory_of(module.kernel).unsafe_buffer_pointer() == pointer
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    @torch_jax.jit
    def step(x):
        optimizer.zero_grad()
        module(x).sum().backward()
        optimizer.step()

    for _ in range(3):
        step(x_of())
    assert not np.array_equal(numpy(module.kernel), before)
    np.testing.assert_array_equal(plain.kernel[...], before)


def test_python_attributes_that_change_are_refused():
    class Count(nnx.Module):
        def __init__(self):
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return x

    with pytest.raises(ValueError, match="Count.__call__ changes attributes that are no nnx.Var"):
        nn_from_flax(Count())(x_of())


# --- as a module of PyTorch's ---------------------------------------------------------------------


def modules() -> dict[str, nn.Module]:
    return {"linen": linen_net()[0], "nnx": nn_from_flax(Graph(nnx.Rngs(0)))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("linen", marks=pytest.mark.slow), "nnx"])
def test_every_executor_trains_it_alike(kind):
    losses = {}
    for how in ("eager", "lazy", "jit"):
        module = modules()[kind]
        optimizer = torch_jax.optim.Optax(module.named_parameters(), optax.adam, lr=0.05)

        def step(x, module=module, optimizer=optimizer):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), torch.zeros_like(x[:, 0]).long())
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = executors.EXECUTORS["eager" if how == "jit" else how](step)
        compiled = run = torch_jax.jit(step, pure=True) if how == "jit" else run
        torch.manual_seed(0)
        losses[how] = [run(x_of()).item() for _ in range(4)]
        losses[how].append(module.eval()(x_of()).sum().item())
        if how == "jit":
            assert compiled.explain().observed == 1
    assert losses["lazy"] == pytest.approx(losses["eager"], rel=1e-4)
    assert losses["jit"] == pytest.approx(losses["eager"], rel=1e-4)


@pytest.mark.slow
def test_compiled_functions_see_what_changes_in_it():
    module = modules()["nnx"]

    @torch_jax.jit(pure=True)
    def run(x):
        return module(x)

    with torch.no_grad():
        for training in (True, False):
            module.train(training)
            module.drop = nn.Identity()  # it has no parameters, nor is it called
            torch.manual_seed(5)
            found = run(x_of())
            torch.manual_seed(5)
            torch.testing.assert_close(found, module(x_of()), rtol=1e-5, atol=1e-6)
        module.inner.kernel = nn.Parameter(torch.zeros(3, 4, device="jax"))
        torch.testing.assert_close(run(x_of()), module(x_of()), rtol=1e-5, atol=1e-6)


def test_random_numbers_come_from_pytorchs_generator():
    module = modules()["nnx"]
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(module(x_of()))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    module.eval()
    state = torch.jax.get_rng_state()
    module(x_of())
    assert torch.equal(torch.jax.get_rng_state(), state)  # nothing is drawn that nobody needs


def test_frozen_copied_and_moved():
    module = modules()["linen"].requires_grad_(False).eval()
    module.outer.requires_grad_(True)
    module(x_of()).sum().backward()
    assert module.inner.kernel.grad is None and module.outer.kernel.grad is not None
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.outer.bias.add_(1)
    close(other(x_of()) - module(x_of()), np.ones((5, 2)))
    low = other.to(torch.bfloat16)
    assert low(x_of().bfloat16()).dtype == torch.bfloat16
    module.to("cpu")
    with pytest.raises(RuntimeError, match=r"is on 'cpu'.*model.to\(\"jax\"\)"):
        module(x_of())
    module.to("jax")
    with pytest.raises(RuntimeError, match=r"an argument, torch.float32\[5, 3\], is on 'cpu'"):
        module(x_of("cpu"))


@pytest.mark.slow
def test_functional_calls_and_batches():
    module = modules()["nnx"].eval()
    params = {name: p.detach() for name, p in module.named_parameters()}

    def loss(params, x):
        return torch.func.functional_call(module, params, (x,)).square().sum()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x_of())
    for row in range(2):
        one = torch.func.grad(loss)(params, x_of()[row])
        for name in params:
            torch.testing.assert_close(grads[name][row], one[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_among_other_modules():
    net = nn.Sequential(nn.Linear(3, 3), modules()["linen"], nn.ReLU()).to("jax").eval()
    assert "1.inner.kernel" in net.state_dict()
    expected = net[2](net[1](net[0](x_of())))
    run = torch_jax.jit(net, pure=True)
    with torch.no_grad():
        torch.testing.assert_close(run(x_of()), expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_dynamo_takes_it():
    module = modules()["nnx"].eval()
    compiled = torch.compile(lambda x: module(x * 2) + 1, backend="jax")
    torch.testing.assert_close(compiled(x_of()), module(x_of() * 2) + 1, rtol=1e-5, atol=1e-6)


def test_without_flax(monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(ImportError, match=r'pip install "torch_jax\[flax\]"'):
        nn_from_flax(None)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="flax.nnx or flax.linen"):
        nn_from_flax(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"Net of linen makes its variables in a first call"):
        nn_from_flax(Net())
    with pytest.raises(TypeError, match="has its arrays"):
        nn_from_flax(Graph(nnx.Rngs(0)), x_of())
