"""JAX functions as PyTorch's: values, gradients, trees, and every way to run them."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils import checkpoint

import torch_jax
from tests.support import executors
from tests.support.compare import assert_same
from torch_jax import call_jax, from_jax_function


def _wave(x, scale=2.0):
    return jnp.sin(x) * jnp.exp(x) * scale


def _wave_of_torch(x, scale=2.0):
    return x.sin() * x.exp() * scale


def _values(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=dtype).reshape(shape)


@executors.each
def test_a_step_by_each_executor(executor):
    def step(call, x, w):
        loss = (call(x @ w) ** 2).sum()
        loss.backward()
        return loss.detach()

    x, w = _values(2, 3), _values(3, 2).requires_grad_()
    on_jax = x.to("jax"), w.detach().to("jax").requires_grad_()
    run = executors.by(executor, functools.partial(step, lambda y: call_jax(_wave, y, scale=3.0)))
    for _ in range(2):
        expected = step(lambda y: _wave_of_torch(y, 3.0), x, w)
        assert_same(run(*on_jax), expected, scale=2)
    assert_same(on_jax[1].grad, w.grad, scale=2)


@executors.each
def test_trees_static_arguments_and_results_without_gradients(executor):
    def of_jax(parts, *, power, dtype):
        total = sum(part**power for part in parts["all"])
        return {"total": total, "rest": [None, (total > 0, jnp.argmax(total).astype(dtype))]}

    def run(x, y):
        found = call_jax(of_jax, {"all": (x, y)}, power=2, dtype=torch.int64)
        return found["total"], *found["rest"][1]

    x, y = _values(4), _values(4) + 1
    total = x**2 + y**2
    found = executors.by(executor, run)(x.to("jax").requires_grad_(), y.to("jax"))
    assert_same(list(found), [total, total > 0, total.argmax().int()])
    assert [tensor.requires_grad for tensor in found] == [True, False, False]


def test_containers_of_pytorch_and_dataclasses():
    @dataclasses.dataclass
    class Pair:
        a: Any
        b: Any

    x = _values(3).to("jax")
    found = call_jax(lambda pair: Pair(pair.b, pair.a + 1), Pair(x, 2 * x))
    assert isinstance(found, Pair)
    assert_same([found.a, found.b], [2 * x.cpu(), x.cpu() + 1])


def test_results_are_new_tensors():
    x = _values(3).to("jax")
    same, again = call_jax(lambda x: (x, x), x)
    same.add_(1)
    assert_same([x, again, same], [_values(3), _values(3), _values(3) + 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "is_quick"),
    [
        (torch.float64, True),
        (torch.complex128, True),
        pytest.param(torch.complex128, False, marks=pytest.mark.slow),
    ],
)
def test_gradients_of_all_orders(dtype, is_quick):
    x = torch.rand(2, dtype=dtype).to("jax").requires_grad_()
    y = torch.rand(2, dtype=dtype).to("jax").requires_grad_()

    def of_jax(x, y):
        return jnp.abs(x) ** 2 * jnp.conj(y) * jnp.exp(x), jnp.real(x * y)

    def function(x, y):
        return call_jax(of_jax, x, y)

    assert torch.autograd.gradcheck(function, (x, y), check_forward_ad=True)
    if is_quick and dtype.is_complex:
        return
    assert torch.autograd.gradgradcheck(function, (x, y))
    assert torch.autograd.gradgradcheck(lambda x: function(x, x)[0], (x,))


def test_third_derivatives():
    x = torch.tensor(0.5, dtype=torch.float64, device="jax", requires_grad=True)
    value = call_jax(_wave, x, 1.0)
    for _ in range(3):
        (value,) = torch.autograd.grad(value, x, create_graph=True)
    x = 0.5
    expected = 2 * np.exp(x) * (np.cos(x) - np.sin(x))
    assert value.item() == pytest.approx(expected)


def test_own_derivatives_are_honoured():
    @jax.custom_vjp
    def backwards(x):
        return x * 2

    backwards.defvjp(lambda x: (x * 2, x), lambda x, g: (g * 100 + x,))

    @jax.custom_jvp
    def forwards(x):
        return x * 2

    forwards.defjvp(lambda primals, tangents: (primals[0] * 2, tangents[0] * 7))
    x = torch.ones(2, device="jax", requires_grad=True)
    (gradient,) = torch.autograd.grad(call_jax(backwards, x).sum(), x)
    assert gradient.tolist() == [101, 101]
    (gradient,) = torch.autograd.grad(call_jax(forwards, x).sum(), x)
    assert gradient.tolist() == [7, 7]
    _, tangent = jvp(lambda x: call_jax(forwards, x), (x.detach(),), (torch.ones_like(x),))
    assert tangent.tolist() == [7, 7]


def test_rules_read_what_the_function_has_read():
    held = {"by": 2.0}

    @jax.custom_vjp
    def function(x):
        return x * held["by"]

    function.defvjp(lambda x: (x * held["by"], None), lambda _, g: (g * held["by"],))
    x = torch.ones(1, device="jax", requires_grad=True)
    first = call_jax(function, x)
    held["by"] = 3.0
    second = call_jax(function, x)
    assert [torch.autograd.grad(y, x)[0].item() for y in (first, second)] == [2, 3]


@pytest.mark.slow
def test_functions_of_torch_func():
    x = _values(3, dtype=torch.float64)
    own = functools.partial(call_jax, _wave)
    for transform in (
        vmap,
        lambda f: vmap(grad(f)),
        lambda f: grad(lambda x: vmap(f)(x).sum()),
        jacrev,
        jacfwd,
        hessian,
        lambda f: (
            lambda x: vmap(vmap(f, in_dims=1), randomness="different")(torch.outer(x, x)[None])
        ),
        lambda f: lambda x: jvp(f, (x,), (x * 2,)),
    ):
        expected = transform(_wave_of_torch)(x)
        assert_same(transform(own)(x.to("jax")), expected, strides=False)


def test_vmap_of_several_arguments():
    x, y, z = _values(2, 3), _values(3, 2), _values(3)

    def product(x, y, z, tanh=torch.tanh):
        return tanh(x) * y + z, (x * y).sum()

    for dims, out in (((0, 1, None), 0), ((0, 1, None), (1, 0))):
        expected = vmap(product, in_dims=dims, out_dims=out)(x, y, z)
        own = vmap(lambda *a: call_jax(product, *a, tanh=jnp.tanh), in_dims=dims, out_dims=out)
        assert_same(own(*(t.to("jax") for t in (x, y, z))), expected, strides=False)


def test_forward_mode_of_autograd():
    x = _values(3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.to("jax"), torch.ones(3).to("jax"))
        value, tangent = torch.autograd.forward_ad.unpack_dual(call_jax(_wave, dual))
    expected, moved = jvp(_wave_of_torch, (x,), (torch.ones(3),))
    assert_same([value, tangent], [expected, moved])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    x = _values(3).to("jax").requires_grad_()
    y = checkpoint.checkpoint(lambda x: call_jax(_wave, x.tanh()), x, use_reentrant=reentrant)
    y.sum().backward()
    on_cpu = _values(3).requires_grad_()
    _wave_of_torch(on_cpu.tanh()).sum().backward()
    assert_same(x.grad, on_cpu.grad)


def test_inference_mode_autocast_and_views():
    x = _values(3, 4)
    with torch.inference_mode(), torch.autocast("jax", dtype=torch.bfloat16):
        found = call_jax(lambda x: x * 2, x.to("jax").t()[1:])
    assert found.is_inference() and found.dtype == torch.float32
    assert_same(found, x.t()[1:] * 2, strides=False)
    z = torch.tensor([1 + 2j]).to("jax").conj()
    assert call_jax(lambda z: z * 1j, z).tolist() == [2 + 1j]


def test_an_argument_may_be_written_after_the_call():
    x = torch.ones(2, device="jax", requires_grad=True)
    y = x * 1
    z = call_jax(lambda y: y * y, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_no_gradient_where_pytorch_stops_it():
    x = torch.ones(2, device="jax", requires_grad=True)
    with torch.no_grad():
        assert not call_jax(_wave, x).requires_grad
    assert not call_jax(_wave, x.detach()).requires_grad
    y = call_jax(lambda a, b: a * b, x, x.detach())
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_threads():
    x, results = _values(3), {}

    def work(at):
        own = x.to("jax").requires_grad_()
        call_jax(lambda x: _wave(x) * at, own).sum().backward()
        results[at] = own.grad.cpu()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (gradient,) = torch.autograd.grad(_wave_of_torch(x.requires_grad_()).sum(), x)
    for at in range(4):
        torch.testing.assert_close(results[at], gradient * at)


# --- values that are no tensors -------------------------------------------------------------------


def test_numbers_and_none_as_results():
    found = call_jax(lambda: (1, 2.5, None, np.arange(2, dtype=np.int8), True))
    assert_same(found[0], torch.tensor(1, dtype=torch.int32))
    assert_same(found[1], torch.tensor(2.5))
    assert found[2] is None
    assert_same(list(found[3:]), [torch.arange(2, dtype=torch.int8), torch.tensor(True)])


def test_dtypes():
    x = torch.ones(2, device="jax")
    kinds = call_jax(lambda x: (x / np.sqrt(2), jnp.zeros(1), jnp.arange(2)), x)
    assert [kind.dtype for kind in kinds] == [torch.float32, torch.float32, torch.int32]
    kinds = call_jax(lambda x: (x, jnp.zeros(1), jnp.arange(2)), x.double())
    assert [kind.dtype for kind in kinds] == [torch.float64, torch.float64, torch.int64]
    whole = torch.tensor([1, 2**40]).to("jax")
    assert call_jax(lambda i: i, whole[:1]).dtype == torch.int32
    with pytest.raises(OverflowError, match=r"<lambda> \(.*test_call_jax.py:\d+\)"):
        call_jax(lambda i: i, whole)
    assert from_jax_function(x64=True)(lambda i: i)(whole).tolist() == [1, 2**40]
    assert call_jax(lambda x: x + 1, x.bfloat16()).dtype == torch.bfloat16


def test_from_jax_function_is_a_function_of_its_own():
    @from_jax_function
    def scaled(x, by=2):
        """Scaled."""
        return x * by

    assert scaled.__name__ == "scaled" and scaled.__doc__ == "Scaled."
    assert scaled(torch.ones(2, device="jax"), by=3).tolist() == [3, 3]
    with pytest.raises(TypeError, match="takes a function, not int"):
        from_jax_function(3)


@pytest.mark.slow
def test_a_module_that_trains():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(_values(2, 2))

        def forward(self, x):
            if x.device.type == "cpu":
                return torch.tanh(x @ self.weight)
            return call_jax(lambda w, x: jnp.tanh(x @ w), self.weight, x)

    def losses(device):
        torch.manual_seed(0)
        model, x = Layer().to(device), _values(3, 2).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = ((model(x) - 1) ** 2).mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses("jax") == pytest.approx(losses("cpu"), rel=1e-4)
    model = Layer().to("jax")
    state = {"weight": torch.zeros(2, 2, device="jax")}
    assert functional_call(model, state, (_values(3, 2).to("jax"),)).abs().sum() == 0


def test_on_a_mesh():
    mesh = torch_jax.mesh(data=1)
    x = torch_jax.shard(torch.arange(4.0), mesh, ("data",))

    def summed(x):
        spec = jax.sharding.PartitionSpec("data")
        inner = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=spec, out_specs=spec)
        return inner(x)

    assert call_jax(summed, x).tolist() == [0, 2, 4, 6]


# --- effects --------------------------------------------------------------------------------------


def test_callbacks_run_at_each_call(capfd):
    def printing(x):
        jax.debug.print("value {}", x[0])
        form = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda x: np.asarray(x) * 2, form, x)

    x = torch.ones(1, device="jax")
    assert [call_jax(printing, x).item() for _ in range(2)] == [2, 2]
    jax.effects_barrier()
    assert capfd.readouterr().out.count("value 1.0") == 2


@pytest.mark.parametrize("executor", ["eager", "lazy", "jit"])
def test_callbacks_of_calls_that_nobody_looks_at(executor):
    seen = []

    def of_jax(x):
        jax.experimental.io_callback(lambda x: seen.append(float(x[0])), None, x, ordered=True)

    run = executors.by(executor, lambda x: (call_jax(of_jax, x), x + 1)[1])
    x = torch.ones(1, device="jax")
    assert [run(x + at).item() for at in range(2)] == [2, 3]
    jax.effects_barrier()
    assert seen == [1, 2]


# --- what is refused ------------------------------------------------------------------------------

LOG: list[Any] = []
_HERE = r"\(.*test_call_jax.py:\d+\)"


def _counts(x):
    LOG.append(x)
    return x


def _broken(x):
    raise KeyError("of the user's")


def test_errors_name_the_function_and_its_line():
    x = torch.ones(2, device="jax")
    count = 0

    def counting(x):
        nonlocal count
        count += 1
        return x

    for function in (_counts, counting):
        with pytest.raises(RuntimeError, match=f"{function.__name__} {_HERE} changes a variable"):
            call_jax(function, x)
    leak = LOG[-1]
    with pytest.raises(RuntimeError, match=f"<lambda> {_HERE} reads a value of a JAX function"):
        call_jax(lambda x: x + leak, x)
    for result in ("text", jax.random.key(0), object()):
        with pytest.raises(TypeError, match=f"<lambda> {_HERE} returned what cannot be a tensor"):
            call_jax(lambda x, result=result: result, x)
    with pytest.raises(RuntimeError, match=r"on the same device.*<lambda> \(.*float32\[2\]"):
        call_jax(lambda x, y: x + y, x, torch.ones(2))
    with pytest.raises(KeyError, match="of the user's") as error:
        call_jax(_broken, x)
    notes = "".join(error.value.__notes__)
    assert "_broken (" in notes and "float32[2]@jax:0" in notes
    with pytest.raises(jax.errors.TracerBoolConversionError, match="_if_positive at"):
        call_jax(_if_positive, x)
    assert call_jax(lambda x, y: x + y, x, torch.tensor(2.0)).tolist() == [3, 3]


def _if_positive(x):
    return x if x.sum() > 0 else -x
