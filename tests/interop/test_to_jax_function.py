"""PyTorch functions as functions of JAX: transformations, derivatives, purity, randomness."""

from __future__ import annotations

import functools
import warnings

import hypothesis
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import torch_jax
from torch_jax import DataDependentError, NotTraceableError, to_jax_function


class Cubed(torch.autograd.Function):
    """x**3 whose backward gives ten times the gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 30 * x**2


def straight_through(x, y):
    return (x + (x.round() - x).detach()) * y


def in_no_grad(x, y):
    with torch.no_grad():
        scale = (x * y).sum()
    return x * scale + y.detach() * x**2


def written(x, y):
    x.mul_(2)
    y[1:] = x[1:].cos()
    z = x.new_zeros(x.shape)
    z[::2] += y[::2]
    return x.sin() + z * y


def views(x, y):
    a = torch.stack([x, y]).t()
    a[:, 0] = a[:, 1] * 3
    return a.reshape(-1)[1:] * a.reshape(-1)[:-1]


def own_backward(x, y):
    return Cubed.apply(x) * y


def gradient_inside(x, y):
    x = x + 0
    (inner,) = torch.autograd.grad((x**3 * y).sum(), x, create_graph=True)
    return inner * y


def checkpointed(x, y):
    return checkpoint(lambda a, b: torch.sin(a * b) * a, x, y, use_reentrant=False)


def by_index(x, y):
    values, order = x.sort(descending=True)
    return values * y.gather(0, order) + y[x.argmax().unsqueeze(0)]


def clamped(x, y):
    return torch.where(x > 0, x.clamp(max=0.5), y) * torch.relu(y) + torch.linalg.vector_norm(x - x)


def unused(x, y):
    return x.exp()


FUNCTIONS = [
    straight_through, in_no_grad, written, views, own_backward, gradient_inside, checkpointed,
    by_index, clamped, unused,
]  # fmt: skip
X, Y = np.array([0.3, -1.2, 0.7, 2.0]), np.array([1.5, 0.4, -0.6, 0.9])


def by_torch(function, x, y):
    """The gradients on the CPU of a weighted sum, and the gradients of their sum."""
    x, y = (torch.from_numpy(a.copy()).requires_grad_() for a in (x, y))
    out = function(x.clone(), y.clone())
    loss = (out * torch.arange(1.0, len(out) + 1)).sum()
    first = torch.autograd.grad(loss, (x, y), create_graph=True, materialize_grads=True)
    total = sum((g * g).sum() for g in first)
    second = [torch.zeros_like(x), torch.zeros_like(y)]
    if total.requires_grad:
        second = torch.autograd.grad(total, (x, y), materialize_grads=True)
    return out, first, second


def by_jax(function, wrap):
    """The same as functions of JAX."""
    jaxed = to_jax_function(function)

    def loss(x, y):
        out = jaxed(x, y)
        return (out * jnp.arange(1.0, len(out) + 1)).sum()

    first = wrap(jax.grad(loss, (0, 1)))

    def total(x, y):
        return sum((g * g).sum() for g in first(x, y))

    return wrap(jaxed), first, wrap(jax.grad(total, (0, 1)))


def close(actual, expected):
    actual = [torch.from_numpy(np.array(a)) for a in jax.tree.leaves(actual)]
    expected = [e.detach() for e in expected]
    # PyTorch's second derivative of a norm is NaN at zero
    torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "wrap"),
    [(f, jax.jit) for f in FUNCTIONS]
    + [(f, lambda f: f) for f in (straight_through, in_no_grad, own_backward)],
)
def test_derivatives_are_those_of_pytorch(function, wrap):
    with jax.enable_x64(True):
        out, first, second = by_torch(function, X, Y)
        functions = by_jax(function, wrap)
        x, y = jnp.asarray(X), jnp.asarray(Y)
        for jaxed, expected in zip(functions, ([out], first, second), strict=True):
            close(jaxed(x, y), expected)
        assert x.tolist() == X.tolist() and y.tolist() == Y.tolist()


@pytest.mark.slow
def test_derivatives_of_third_order():
    f = to_jax_function(lambda x: (x**4 * x.detach()).sum())
    third = jax.grad(lambda x: jax.grad(lambda x: jax.grad(f)(x).sum())(x).sum())
    x = jnp.array([1.0, 2.0])
    for run in (third, jax.jit(third)):
        np.testing.assert_allclose(run(x), 24 * x * x)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, -1) * F.gelu(x),
        lambda x: torch.linalg.solve(x @ x.T + 3 * torch.eye(3, dtype=x.dtype), x),
        lambda x: F.layer_norm(x, (4,)).logsumexp(0)
        * torch.view_as_complex(x.view(3, 2, 2)).abs().sum(),
    ],
    ids=["softmax", "solve", "complex"],
)  # fmt: skip
def test_finite_differences(function):
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
        run = jax.jit(to_jax_function(function))
        jax.test_util.check_grads(run, (x,), order=2, modes=["rev"], rtol=1e-4)


@pytest.mark.slow
def test_complex_gradients_follow_jax():
    z = jnp.array([1 + 2j, -0.5 + 1j])
    by_us = jax.grad(to_jax_function(lambda z: (z * z * (2 + 1j)).real.sum()))(z)
    by_them = jax.grad(lambda z: (z * z * (2 + 1j)).real.sum())(z)
    np.testing.assert_allclose(by_us, by_them, rtol=1e-6)
    twice = to_jax_function(lambda z: (z**3).imag.sum())
    np.testing.assert_allclose(
        jax.grad(lambda z: jax.grad(twice)(z).real.sum())(z),
        jax.grad(lambda z: jax.grad(lambda z: (z**3).imag.sum())(z).real.sum())(z),
        rtol=1e-6,
    )


# --- transformations ------------------------------------------------------------------------------


def largest(x, y):
    values, order = x.max(0)
    return (values * y[order.unsqueeze(0)]).sum(), order


LARGEST = to_jax_function(largest)


def value(x, y):
    return LARGEST(x, y)[0]


def expected_value(x, y):
    return (x.max() * y[x.argmax()]).sum()


@pytest.mark.slow
def test_vmap_and_its_gradient():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
    for transformed in (jax.vmap, lambda f: jax.vmap(jax.grad(f, (0, 1)))):
        expected = transformed(expected_value)(x, -x)
        for run in (transformed(value), jax.jit(transformed(value))):
            jax.tree.map(np.testing.assert_allclose, run(x, -x), expected)
    mixed = jax.vmap(value, in_axes=(0, None))(x, x[0])
    np.testing.assert_allclose(mixed, jax.vmap(expected_value, in_axes=(0, None))(x, x[0]))


def test_scan_and_checkpoint():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))

    def total(function, c):
        def body(c, row):
            return c + jax.checkpoint(function)(row * c, row), c

        return jax.lax.scan(body, c, x)[0]

    for transformed in (jax.jit, lambda f: jax.jit(jax.grad(f))):
        actual = transformed(functools.partial(total, value))(0.5)
        expected = transformed(functools.partial(total, expected_value))(0.5)
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_shapes_without_running():
    shape = jax.eval_shape(LARGEST, jax.ShapeDtypeStruct((3,), np.float32), jnp.ones(3))
    assert [(s.shape, s.dtype) for s in shape] == [((), np.float32), ((), np.int32)]


def test_dtypes_without_x64():
    f = to_jax_function(lambda x: (x.argmax(), x.double() * 2, torch.arange(3)))
    for run in (f, jax.jit(f), jax.vmap(f)):
        x = jnp.ones((2, 2))
        assert [r.dtype for r in run(x)] == [np.int32, np.float32, np.int32]
    with jax.enable_x64(True):
        assert [r.dtype for r in f(x)] == [np.int64, np.float64, np.int64]


@pytest.mark.slow
def test_residuals_keep_their_bits_without_x64():
    big = 2**40 + 1

    def wide(x):
        numbers = (x > 0).long() * big
        return (x.double() * (numbers - 2**40).double()).sum().float() + (x * numbers).sum() * 0

    def total(function, c):
        return jax.lax.scan(lambda c, x: (c + function(x * c), None), c, jnp.ones((3, 2)))[0]

    slope = jax.jit(jax.grad(functools.partial(total, to_jax_function(wide))))(1.0)
    assert slope == jax.grad(functools.partial(total, jnp.sum))(1.0)


def test_trees_and_static_arguments():
    f = to_jax_function(lambda tree, *, power, name="x": {name: tree["a"][0] ** power, "n": power})
    out = f({"a": [jnp.ones(2) * 3]}, power=2, name="y")
    assert out["y"].tolist() == [9, 9] and out["n"] == 2
    assert jax.jit(f, static_argnames=("power", "name"))({"a": [jnp.ones(1)]}, power=3)["x"] == 1


def test_no_copies():
    x = jnp.ones((128, 128))
    same, also = to_jax_function(lambda x: (x, {"again": x.view(-1).view(128, 128)}))(x)
    pointers = {a.unsafe_buffer_pointer() for a in (x, same, also["again"])}
    assert len(pointers) == 1


# --- purity ---------------------------------------------------------------------------------------

GLOBAL = torch.zeros(2, device="jax")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.grad], ids=["called", "jit", "grad"])
def test_writes_to_tensors_from_outside_are_refused(wrap):
    held, module = torch.ones(2, device="jax"), torch.nn.BatchNorm1d(2, device="jax")
    on_cpu = torch.zeros(2)

    def to_global(x):
        GLOBAL.add_(x)
        return x.sum()

    def to_view(x):
        held[0] = x[0]
        return x.sum()

    def to_cpu(x):
        on_cpu.add_(1)
        return x.sum()

    def to_buffer(x):
        return module(torch.stack([x, 2 * x])).sum()

    for function, named in (
        (to_global, "'GLOBAL'"),
        (to_view, "'held'"),
        (to_cpu, "'on_cpu'"),
        (to_buffer, "module.num_batches_tracked"),
    ):
        with pytest.raises(NotTraceableError, match=named) as caught:
            wrap(to_jax_function(function))(jnp.ones(2))
        assert "functional" in str(caught.value) and function.__name__ in str(caught.value)
    assert GLOBAL.tolist() == [0, 0] and held.tolist() == [1, 1] and on_cpu.tolist() == [0, 0]
    assert module.running_mean.tolist() == [0, 0] and module.num_batches_tracked == 0


def test_gradients_that_would_stay_outside_are_refused():
    weight = torch.ones(2, device="jax", requires_grad=True)

    def backward(x):
        loss = (x * weight).sum()
        loss.backward()
        return loss

    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(NotTraceableError, match="'weight'"):
            wrap(to_jax_function(backward))(jnp.ones(2))
        assert weight.grad is None


def test_large_constants_are_named():
    weight = torch.ones(1024, 512, device="jax")
    with pytest.warns(UserWarning, match=r"'weight'.*functional"):
        jax.jit(to_jax_function(lambda x: x @ weight))(jnp.ones((2, 1024)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_jax_function(lambda x: x @ weight)(jnp.ones((2, 1024)))


def test_tensors_of_the_cpu_are_named():
    module = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match=r"'module.weight'.*functional"):
        to_jax_function(lambda x: module(x))(jnp.ones((1, 2)))


def test_tensors_as_arguments_are_refused():
    with pytest.raises(TypeError, match="takes arrays"):
        LARGEST(torch.ones(2), jnp.ones(2))


@pytest.mark.parametrize("wrap", [jax.jit, jax.grad, jax.vmap], ids=["jit", "grad", "vmap"])
def test_values_are_asked_for(wrap):
    def branch(x):
        if x.sum() > 0:
            return x.sum()
        return -x.sum()

    run = wrap(to_jax_function(branch))
    if wrap is jax.grad:  # outside of jit a gradient has values
        assert run(jnp.ones(2)).tolist() == [1, 1]
        return
    with pytest.raises(
        DataDependentError, match=r"test_to_jax_function.py:\d+, in branch"
    ) as error:
        run(jnp.ones((2, 2)))
    assert any("jax.lax.cond" in note for note in error.value.__notes__)


def test_the_thread_is_left_as_it_was():
    def fails(x):
        torch.rand(2)
        raise KeyError("mine")

    torch.manual_seed(3)
    state = torch.jax.get_rng_state()
    for wrap in (lambda f: f, jax.jit, jax.grad):
        with pytest.raises(KeyError, match="mine"):
            wrap(to_jax_function(fails))(jnp.ones(2), rng=jax.random.key(0))
    assert torch.equal(state, torch.jax.get_rng_state()) and torch.is_grad_enabled()
    assert torch.rand(2).device.type == "cpu" and torch.autograd.is_multithreading_enabled()


# --- randomness -----------------------------------------------------------------------------------


def noisy(x):
    return F.dropout(x, 0.5) + torch.rand(x.shape)


@pytest.mark.slow
def test_random_numbers_come_from_the_key():
    f = to_jax_function(noisy)
    x, keys = jnp.ones(64), jax.random.split(jax.random.key(0))
    first, again, other = f(x, rng=keys[0]), f(x, rng=keys[0]), f(x, rng=keys[1])
    assert (first == again).all() and not (first == other).any()
    jitted = jax.jit(lambda x, key: f(x, rng=key))
    np.testing.assert_array_equal(jitted(x, keys[0]), first)
    np.testing.assert_array_equal(jitted(x, keys[1]), other)
    both = jax.vmap(lambda key: f(x, rng=key))(keys)
    np.testing.assert_array_equal(both, jnp.stack([first, other]))
    slope = jax.grad(lambda x: f(x, rng=keys[0]).sum())(x)
    assert set(slope.tolist()) == {0, 2}
    np.testing.assert_array_equal(slope > 0, first > 1.9999)


def test_random_numbers_without_a_key():
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(NotTraceableError, match=r"noisy.*rng=jax.random.key"):
            wrap(to_jax_function(noisy))(jnp.ones(4))

    def seeded(x):
        torch.manual_seed(0)
        return x + torch.rand(4)

    with pytest.raises(NotTraceableError, match="seeds"):
        to_jax_function(seeded)(jnp.ones(4), rng=jax.random.key(0))
    for on_cpu in (
        lambda: torch.rand((), device="cpu"),
        lambda: torch.zeros(2, device="cpu").normal_(),
    ):
        with pytest.raises(NotTraceableError, match="on the CPU"):
            to_jax_function(lambda x: x + on_cpu().sum())(jnp.ones(4), rng=jax.random.key(0))  # noqa: B023
    with pytest.raises(TypeError, match="jax.random.key"):
        to_jax_function(noisy)(jnp.ones(4), rng=0)


def test_attention_without_dropout_needs_no_key():
    attend = to_jax_function(lambda q: F.scaled_dot_product_attention(q, q, q))
    q = np.random.default_rng(0).normal(size=(1, 2, 8, 4)).astype(np.float32)
    expected = F.scaled_dot_product_attention(*[torch.from_numpy(q)] * 3)
    close(jax.jit(attend)(q), [expected])


@pytest.mark.slow
def test_checkpoints_drop_the_same_again():
    def f(x):
        return checkpoint(lambda x: F.dropout(x, 0.5).sin() * x, x * 1, use_reentrant=False)

    run, x = to_jax_function(f), jnp.ones(64)
    key, state = jax.random.key(1), torch.jax.get_rng_state()
    for wrap in (lambda f: f, jax.jit):
        out, slope = wrap(jax.value_and_grad(lambda x: run(x, rng=key).sum()))(x)
        mask = run(x, rng=key) > 0
        np.testing.assert_array_equal(slope != 0, mask)
        assert 0 < mask.sum() < 64
    assert torch.equal(torch.jax.get_rng_state(), state)


# --- derivatives by JAX ---------------------------------------------------------------------------


@pytest.mark.slow
def test_forward_mode():
    f = to_jax_function(lambda x: (x.tanh() * x).sum(), derivatives="jax")
    x = jnp.array([0.5, 1.0])
    for transform in (jax.hessian, jax.jacfwd, jax.grad):
        expected = transform(lambda x: (jnp.tanh(x) * x).sum())(x)
        for run in (transform(f), jax.jit(transform(f))):
            np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_jax_in_pytorch_in_jax():
    def function(x):
        return (torch_jax.call_jax(jnp.sin, x) * x.detach()).sum()

    f, x = to_jax_function(function), jnp.array([0.5, 2.0])
    for wrap in (jax.jit, jax.vmap):
        slope = wrap(jax.grad(f))(x.reshape(-1, 1) if wrap is jax.vmap else x)
        np.testing.assert_allclose(slope.ravel(), jnp.cos(x) * x, rtol=1e-5)
    twice = jax.grad(lambda x: jax.grad(f)(x).sum())(x)
    np.testing.assert_allclose(twice, -jnp.sin(x) * x, rtol=1e-5)
    by_jax = to_jax_function(lambda x: torch_jax.call_jax(jnp.sin, x).sum(), derivatives="jax")
    np.testing.assert_allclose(jax.hessian(by_jax)(x), jnp.diag(-jnp.sin(x)), atol=1e-6)


def through_data(x, y):
    return x.data * y


@pytest.mark.parametrize("function", [straight_through, in_no_grad, own_backward, through_data])
def test_forward_mode_refuses_what_stops_gradients(function):
    with pytest.raises(NotTraceableError, match='derivatives="torch"'):
        to_jax_function(function, derivatives="jax")(jnp.ones(2), jnp.ones(2))


# --- random programs ------------------------------------------------------------------------------

STEPS = {
    "add": lambda a, b: a + 0.5 * b,
    "multiply": lambda a, b: a * b,
    "sine": lambda a, b: a.sin() + b,
    "detach": lambda a, b: a.detach() * b,
    "no_grad": lambda a, b: _no_grad(a, b),
    "custom": lambda a, b: Cubed.apply(a.tanh()) + b,
    "write": lambda a, b: a.clone().mul_(b).add_(1),
    "write_view": lambda a, b: _write_view(a, b),
    "transpose": lambda a, b: a.t().reshape(a.shape) * 0.7 + b.flip(0),
    "sort": lambda a, b: a.sort(0).values - b,
    "data": lambda a, b: a * b.data,
    "straight_through": lambda a, b: a + (b.round() - b).detach(),
}


def _no_grad(a, b):
    with torch.no_grad():
        c = a * b
        c[0] = 1
    return c + a


def _write_view(a, b):
    out = a.clone()
    out[:, 1:].copy_(b[:, :-1].detach() * out[:, :1])
    out.view(-1)[::3] = b.sin().view(-1)[::3]
    return out


PROGRAMS = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9)), max_size=6)


@pytest.mark.slow
@hypothesis.settings(max_examples=3)
@hypothesis.given(PROGRAMS)
def test_random_programs(steps):
    check_program(steps)


@pytest.mark.slow
@hypothesis.settings(max_examples=100)
@hypothesis.given(PROGRAMS)
def test_more_random_programs(steps):
    check_program(steps)


def check_program(steps):
    """The gradients of a program, and the gradients of these, are those of the CPU."""

    def program(x, y):
        values = [x, y]
        for name, at in steps:
            values.append(STEPS[name](values[-1], values[at % len(values)]))
        return values[-1].flatten()

    rng = np.random.default_rng(len(steps))
    x, y = rng.normal(size=(2, 3, 4))
    with jax.enable_x64(True):
        out, first, second = by_torch(program, x, y)
        functions = by_jax(program, jax.jit)
        for jaxed, expected in zip(functions, ([out], first, second), strict=True):
            close(jaxed(jnp.asarray(x), jnp.asarray(y)), expected)


# --- what has outlived its trace ------------------------------------------------------------------


def test_tensors_that_outlive_a_trace():
    kept = []

    def leaks(x):
        kept.append(x * 2)
        return x.sum()

    jax.jit(to_jax_function(leaks))(jnp.ones(3))
    later = to_jax_function(lambda x: x + kept[0])
    for use in (
        lambda: kept[0] + 1,
        kept[0].cpu,
        lambda: kept[0].add_(1),
        lambda: later(jnp.ones(3)),
    ):
        with pytest.raises(NotTraceableError, match="has left it behind.*return it"):
            use()


def test_keys_are_no_tensors():
    with pytest.raises(TypeError, match="rng="):
        to_jax_function(lambda x: x)(jax.random.key(0))


def test_names():
    def named(x):
        """Says this."""

    assert to_jax_function(named).__doc__ == "Says this."
    with pytest.raises(ValueError, match="derivatives"):
        torch_jax.to_jax_function(named, derivatives="both")
