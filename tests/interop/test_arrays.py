"""Tensors as arrays and arrays as tensors: uncopied, exact, and refused where that cannot be."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from torch._subclasses import FakeTensorMode

import torch_jax
from tests.support.compare import assert_same
from torch_jax import from_jax, to_jax
from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes
from torch_jax.memory.storage import memory_of

GONE, ENDED = "was deleted, or donated to a program of JAX's", "made while a function was traced"


def on_jax(*values: float, **options: Any) -> torch.Tensor:
    return torch.tensor(values, **options).to("jax")


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.TO_JAX, ids=str)
def test_every_dtype_crosses_uncopied(dtype):
    host = torch.tensor([0, 1, 2]).to(torch.float32).to(dtype)
    x = host.to("jax")
    array = to_jax(x)
    assert array.dtype == dtypes.to_jax(dtype)
    assert array.unsafe_buffer_pointer() == memory_of(x).unsafe_buffer_pointer()
    back = from_jax(array)
    assert back.dtype == dtype and memory_of(back) is array
    assert_same(back.to(torch.complex128), host.to(torch.complex128))


VIEWS = {
    "transposed": lambda x: x.t(),
    "part": lambda x: x[1:, ::2],
    "row": lambda x: x[0],
    "expanded": lambda x: x[:1].expand(4, 3),
    "flat": lambda x: x.view(-1),
    "bytes": lambda x: x.view(torch.int32),
    "empty": lambda x: x[:0],
    "number": lambda x: x[0, 1],
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "negative": lambda x: torch.complex(x, x).conj().imag,
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_gives_what_it_shows(view):
    host = torch.arange(6.0).view(2, 3)
    array = to_jax(VIEWS[view](host.to("jax")))
    assert np.array_equal(array, VIEWS[view](host).resolve_conj().resolve_neg().numpy())


def test_writing_leaves_arrays_and_arrays_know_nothing_of_writes():
    x = on_jax(1.0, 2.0)
    array = to_jax(x)
    y = from_jax(array)
    x += 1
    y[0] = 7
    assert (array.tolist(), x.tolist(), y.tolist()) == ([1, 2], [2, 3], [7, 2])
    assert to_jax(x).tolist() == [2, 3]


def test_64_bits_cross_where_jax_has_none_of_its_own():
    assert not jax.config.jax_enable_x64
    x = torch.tensor([2**40 + 1]).to("jax")
    assert to_jax(x).dtype == np.int64 and from_jax(to_jax(x)).tolist() == [2**40 + 1]


def test_trees_and_what_is_no_value_of_the_other_world():
    module = torch.nn.Linear(2, 2, device="jax")
    tree = {"b": module.weight.detach(), "a": (1, "x", None, np.ones(1)), 3: jnp.ones(1)}
    given = to_jax(tree)
    assert list(given) == ["b", "a", 3] and isinstance(given["b"], jax.Array)
    assert given["a"][:3] == (1, "x", None) and given["a"][3] is tree["a"][3]
    assert given[3] is tree[3]
    taken = from_jax(given)
    assert memory_of(taken["b"]) is given["b"] and taken["a"][:3] == (1, "x", None)
    assert from_jax(taken["b"]) is taken["b"]


def test_numpy_arrays_are_copied():
    for host in (np.arange(3), np.arange(3, dtype=">i4"), np.float64(2), np.ones(2, "bool")):
        tensor = from_jax(host)
        assert tensor.device.type == "jax" and tensor.tolist() == host.tolist()
        assert tensor.dtype == dtypes.to_torch(host.dtype.newbyteorder("="))
    host = np.zeros(1 << 16, np.float32)
    tensor = from_jax(host)
    host[:] = 1
    assert tensor.sum() == 0


def test_weak_types_stay_behind():
    array = jnp.asarray(2.0)
    tensor = from_jax(array)
    assert array.weak_type and not memory_of(tensor).weak_type
    assert memory_of(tensor).unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    wide = on_jax(1, dtype=torch.float64)
    assert (tensor.reshape(1) + wide).dtype == torch.float64


def test_parameters_of_arrays_are_trained():
    array = jnp.array([1.0, 2.0])
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(from_jax(array))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    (module.weight**2).sum().backward()
    optimizer.step()
    assert module.weight.tolist() == [0, 0] and array.tolist() == [1, 2]
    assert to_jax(module.state_dict())["weight"].tolist() == [0, 0]


@pytest.mark.slow
def test_the_first_use_of_the_device_may_be_an_array():
    program = "import jax.numpy as n, torch_jax; print(torch_jax.from_jax(n.ones(2)).sum().item())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert done.stdout == b"2.0\n", done.stderr


# --- how code runs --------------------------------------------------------------------------------


def test_recorded_tensors_are_computed():
    with torch_jax.lazy():
        x = on_jax(1.0, 2.0) * 2
        array = to_jax(x)
        y = from_jax(jnp.sin(array)) + x
        x.zero_()
    assert array.tolist() == [2, 4]
    assert_same(y, torch.tensor([2.0, 4.0]).sin() + torch.tensor([2.0, 4.0]))


class Holder:
    array: Any = None


def test_under_torch_jax_jit_nothing_is_stale():
    holder = Holder()

    def function(x: torch.Tensor, offset: Any) -> torch.Tensor:
        return from_jax(jnp.cos(to_jax(x * 2)) + holder.array + offset)

    compiled = torch_jax.jit(function)
    for i in range(8):
        holder.array, offset, x = jnp.full(2, i / 2), jnp.full(2, float(i)), on_jax(1.0, i)
        assert_same(compiled(x, offset), function(x, offset).cpu())


def test_a_pure_function_refuses_and_says_where():
    function = torch_jax.jit(lambda x: from_jax(to_jax(x)), pure=True)
    for _ in range(3):
        with pytest.raises(torch_jax.NotTraceableError, match=r"to_jax.*test_arrays\.py"):
            function(on_jax(1.0))


def test_under_jax_tracers_cross():
    @jax.jit
    def function(array):
        x = from_jax({"a": array})["a"]
        return to_jax((x * 2).clamp(max=3).t())

    assert function(jnp.ones((2, 3)) * 2).tolist() == [[3, 3]] * 3
    assert jax.vmap(function)(jnp.ones((2, 2, 3))).shape == (2, 3, 2)
    assert jax.grad(lambda a: function(a).sum())(jnp.ones((1, 1))).tolist() == [[2]]


def test_threads():
    x, failed = torch.zeros(64).to("jax"), []

    def reads() -> None:
        for _ in range(50):
            values = set(to_jax(x).tolist())
            if len(values) != 1:
                failed.append(values)

    threads = [threading.Thread(target=reads) for _ in range(2)]
    for thread in threads:
        thread.start()
    step = torch_jax.jit(lambda t: t.add_(1))
    for _ in range(50):
        step(x)
    for thread in threads:
        thread.join()
    assert not failed and x[0] == 50


# --- shardings ------------------------------------------------------------------------------------


def test_a_mesh_of_one_device_is_no_mesh():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    array = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, PartitionSpec("data")))
    assert (from_jax(array) + 1).tolist() == [1, 2, 3, 4]
    assert isinstance(to_jax(on_jax(1.0)).sharding, SingleDeviceSharding)


# --- what cannot cross ----------------------------------------------------------------------------


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2, device="jax")


def inside_vmap() -> Any:
    return torch.func.vmap(to_jax)(torch.ones(2, 2).to("jax"))


NO_ARRAYS = {
    "cpu": (lambda: torch.ones(2), TypeError, r"Use tensor\.to\('jax'\)"),
    "meta": (lambda: torch.ones(2, device="meta"), TypeError, "no elements"),
    "grad": (lambda: on_jax(1.0).requires_grad_(), RuntimeError, r"Use tensor\.detach\(\)"),
    "sparse": (lambda: on_jax(1.0).to_sparse(), TypeError, r"Use tensor\.to_dense\(\)"),
    "fake": (fake, TypeError, "FakeTensor"),
    "vmap": (inside_vmap, TypeError, "torch.func"),
}
NO_TENSORS = {
    "key": (lambda: jax.random.key(0), TypeError, r"jax\.random\.key_data"),
    "int4": (lambda: jnp.ones(2, jnp.int4), TypeError, r"no dtype int4.*astype"),
    "objects": (lambda: np.array([None]), TypeError, "no dtype object"),
    "float0": (lambda: np.zeros(2, jax.dtypes.float0), TypeError, "float0"),
}


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_what_is_no_array(name):
    make, kind, words = NO_ARRAYS[name]
    with pytest.raises(kind, match=words):
        to_jax(make())
    with pytest.raises(kind, match=words if name == "vmap" else r"at \['a'\]\[1\] of the tree"):
        to_jax({"a": [1, make()]})


@pytest.mark.parametrize("name", NO_TENSORS)
def test_what_is_no_tensor(name):
    make, kind, words = NO_TENSORS[name]
    with pytest.raises(kind, match=words):
        from_jax(make())
    with pytest.raises(kind, match=r"at \['a'\]\[1\] of the tree"):
        from_jax({"a": [1, make()]})


def donated() -> torch.Tensor:
    """A tensor whose memory the user's own program has taken."""
    x = on_jax(1.0, 2.0) + 0
    jax.jit(lambda a: a + 1, donate_argnums=0)(to_jax(x))
    return x


doubled = torch_jax.jit(lambda x: x * 2)


def lazily(x: torch.Tensor) -> Any:
    with torch_jax.lazy():
        return (x + 1).relu()


USES = {
    "operator": lambda x: x + 1,
    "write": lambda x: x.add_(1),
    "view": lambda x: x[1:] * 2,
    "host": lambda x: x.cpu(),
    "number": lambda x: x[0].item(),
    "print": repr,
    "to_jax": to_jax,
    "lazy": lazily,
    "jit": doubled,
}


@pytest.mark.parametrize("use", USES)
def test_a_memory_that_was_donated(use):
    for _ in range(4):
        doubled(on_jax(1.0, 2.0))
    with pytest.raises(RuntimeError, match=GONE):
        USES[use](donated())


def test_an_array_that_was_deleted():
    array = jnp.ones(2)
    array.delete()
    with pytest.raises(RuntimeError, match=rf"float32\[2\] {GONE}.*test_arrays\.py"):
        from_jax(array)


def test_an_array_where_the_device_does_not_compute():
    kinds = [memory.kind for memory in jax.devices()[0].addressable_memories()]
    for kind in set(kinds) - {jax.devices()[0].default_memory().kind}:
        there = SingleDeviceSharding(jax.devices()[0], memory_kind=kind)
        with pytest.raises(RuntimeError, match="with_memory_kind"):
            from_jax(jax.device_put(jnp.ones(2), there))


def leaked() -> tuple[torch.Tensor, Any]:
    """A tensor and an array of a trace that has ended."""
    found = []

    @jax.jit
    def function(array):
        found.append((from_jax(array), array))
        return array

    function(jnp.ones(2))
    return found[0]


@pytest.mark.parametrize("use", USES)
def test_a_tensor_of_a_trace_that_has_ended(use):
    tensor, _ = leaked()
    with pytest.raises(RuntimeError, match=rf"{ENDED}.*test_arrays\.py"):
        USES[use](tensor)


def test_an_array_of_a_trace_that_has_ended():
    with pytest.raises(RuntimeError, match=rf"{ENDED}.*test_arrays\.py"):
        from_jax(leaked()[1])


def test_a_tensor_of_another_trace():
    tensor, _ = leaked()
    with pytest.raises(jax.errors.UnexpectedTracerError):  # JAX finds it when its trace is over
        jax.jit(lambda a: to_jax(from_jax(a) + tensor))(jnp.ones(2))


# --- what JAX, NumPy and DLPack ask ---------------------------------------------------------------


def test_jax_numpy_takes_tensors_where_it_converts():
    x = on_jax(1.0, 2.0)
    assert jnp.asarray(x) is to_jax(x)
    assert jnp.stack([x, x]).shape == (2, 2) and (jnp.ones(2) + x).tolist() == [2, 3]
    copy = jnp.array(x)
    assert copy.unsafe_buffer_pointer() != to_jax(x).unsafe_buffer_pointer()
    with pytest.raises(RuntimeError, match="detach"):
        jnp.asarray(on_jax(1.0).requires_grad_())
    with pytest.raises((TypeError, ValueError), match="jax.numpy|abstract array"):
        jax.jit(jnp.sin)(x)
    assert not hasattr(torch.ones(1), "__jax_array__")


def test_capsules_have_a_version_where_a_consumer_asks():
    for x in (torch.ones(2), torch.ones(2, device="jax")):
        assert '"dltensor"' in repr(x.__dlpack__())
        assert '"dltensor_versioned"' in repr(x.__dlpack__(max_version=(1, 0)))
        assert torch.from_dlpack(x.__dlpack__(max_version=(1, 0))).tolist() == [1, 1]


def test_dlpack():
    array, x = jnp.arange(3.0), on_jax(1.0, 2.0)
    assert memory_of(torch.from_dlpack(array, device="jax")) is array
    copy = torch.from_dlpack(array, device="jax", copy=True)
    assert memory_of(copy).unsafe_buffer_pointer() != array.unsafe_buffer_pointer()
    assert torch.from_dlpack(np.ones(2), device="jax").device.type == "jax"
    with pytest.raises(BufferError, match="copy"):
        torch.from_dlpack(np.ones(2), device="jax", copy=False)
    with x64():
        assert jnp.from_dlpack(x).tolist() == np.from_dlpack(x).tolist() == [1, 2]
