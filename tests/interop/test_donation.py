"""Arrays that users have had in their hands are never changed and never donated.

Programs donate the memories that they write. JAX has many ways to another array object of the same
memory, which reference counts do not show, and all of them are gone when one is donated.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_jax
from tests.support.executors import EXECUTORS
from torch_jax.core import crossed
from torch_jax.interop.arrays import from_jax, to_jax
from torch_jax.memory.storage import memory_of

LENGTH = 8


def scaled(x: torch.Tensor) -> torch.Tensor:
    """A step that writes its argument in place."""
    x.mul_(3).add_(1)
    return x.sum()


def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A step that reads one argument and writes the other."""
    y.add_(x)
    x[: LENGTH // 2].neg_()
    return x - y


def lazily(function: Callable[..., Any]) -> Callable[..., Any]:
    return EXECUTORS["lazy"](function)


ALIASES: dict[str, Callable[[jax.Array], Any]] = {
    "itself": lambda a: a,
    "addressable_data": lambda a: a.addressable_data(0),
    "shards": lambda a: a.addressable_shards[0].data,
    "device_put": lambda a: jax.device_put(a, jax.devices()[0]),
    "device_put_sharding": lambda a: jax.device_put(a, a.sharding),
    "made_of_parts": lambda a: jax.make_array_from_single_device_arrays(a.shape, a.sharding, [a]),
    "numpy": np.asarray,
    "dlpack": jnp.from_dlpack,
    "capsule_of_numpy": np.from_dlpack,
}
STEPS = {
    "jit": EXECUTORS["jit"](scaled),
    "recorded": torch_jax.jit(scaled),
    "lazy": lazily(scaled),
}


def pointer(tensor: torch.Tensor) -> int:
    return memory_of(tensor).unsafe_buffer_pointer()


@pytest.fixture(params=STEPS)
def step(request, nothing_is_remembered) -> Callable[[torch.Tensor], Any]:
    found = STEPS[request.param]
    for _ in range(4):  # a recorded graph that has run before is sure of what it may write over
        found(torch.arange(float(LENGTH)).to("jax"))
    return found


def test_a_step_writes_over_a_memory_that_nobody_else_knows(step):
    made_by_xla = EXECUTORS["jit"](lambda x: x + 0)  # NumPy's memory cannot be written by XLA
    for _ in range(3):  # traced at its second call
        x = made_by_xla(torch.arange(float(LENGTH)).to("jax"))
    before = pointer(x)
    step(x)
    assert pointer(x) == before


@pytest.mark.parametrize("alias", ALIASES)
def test_what_was_given_out_stays(step, alias):
    x = torch.arange(float(LENGTH)).to("jax") + 0
    other = ALIASES[alias](to_jax(x))
    step(x)
    assert np.asarray(other).tolist() == list(range(LENGTH))
    assert x.tolist() == [3.0 * i + 1 for i in range(LENGTH)]


@pytest.mark.parametrize("alias", ALIASES)
def test_what_was_taken_in_stays(step, alias):
    array = jnp.arange(float(LENGTH)) + 0
    x, other = from_jax(array), ALIASES[alias](array)
    del array
    step(x)
    assert np.asarray(other).tolist() == list(range(LENGTH))
    assert x.tolist() == [3.0 * i + 1 for i in range(LENGTH)]


def test_without_marks_an_alias_would_be_gone(step):
    with mock.patch.object(crossed, "mark", lambda array: None):
        x = torch.arange(float(LENGTH)).to("jax") + 0
        other = to_jax(x).addressable_data(0)
        step(x)
    assert other.is_deleted()


def test_a_memory_is_copied_once_and_written_in_place_from_then_on(step):
    x = torch.arange(float(LENGTH)).to("jax") + 0
    array = to_jax(x)
    step(x)
    after = pointer(x)
    assert after != array.unsafe_buffer_pointer()
    step(x)
    assert pointer(x) == after


@pytest.mark.slow
def test_marks_go_with_their_arrays():
    gc.collect()  # what earlier tests have left
    before = len(crossed.MARKED)
    arrays = [to_jax(torch.ones(2, device="jax")) for _ in range(3)]
    assert len(crossed.MARKED) == before + 3
    del arrays
    gc.collect()
    assert len(crossed.MARKED) == before


def test_a_clone_shares_what_was_given_out_and_takes_none_of_it(step):
    x = torch.arange(float(LENGTH)).to("jax") + 0
    y = x.clone()
    other = to_jax(x).addressable_data(0)
    del x
    step(y)
    assert other.tolist() == list(range(LENGTH))


def test_numpy_memory_that_jax_shares_is_not_written(step):
    whole = np.zeros(LENGTH + 16, np.float32)
    start = -whole.ctypes.data % 64 // 4  # where JAX takes the memory as it is
    host = whole[start : start + LENGTH]
    array = jax.device_put(host)
    assert array.unsafe_buffer_pointer() == host.ctypes.data
    x = from_jax(array)
    del array
    step(x)
    assert x.tolist() == [1.0] * LENGTH and not whole.any()


def test_the_state_of_an_interpreter_stays(step):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(float(LENGTH)).to("jax"))

        def forward(self, x):
            return x * self.weight

    net = Net()
    state = torch_jax.JaxInterpreter(torch.fx.symbolic_trace(net)).state
    other = state.pop("weight").addressable_data(0)
    with torch.no_grad():
        step(net.weight.detach())
    assert other.tolist() == list(range(LENGTH))


def test_an_optimizer_under_jit_leaves_what_it_was_given():
    first = jnp.arange(float(LENGTH))
    weight = torch.nn.Parameter(from_jax(first))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)

    def train() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch_jax.jit(train)
    kept = [(first.addressable_data(0), np.asarray(first).copy())]
    del first
    for _ in range(6):
        array = to_jax(weight.detach())
        kept.append((jax.device_put(array, jax.devices()[0]), np.array(array)))
        del array
        compiled()
    for array, snapshot in kept:
        assert np.array_equal(array, snapshot)
    assert len({snapshot.tobytes() for _, snapshot in kept}) == 6


# --- random programs ------------------------------------------------------------------------------


class Program:
    """Tensors of the device with their twins on the CPU, and arrays with snapshots."""

    def __init__(self) -> None:
        self.tensors = [(torch.arange(float(LENGTH)).to("jax") + 0, torch.arange(float(LENGTH)))]
        self.arrays: list[tuple[Any, np.ndarray]] = []

    def run(self, action: str, at: int, other: int) -> None:
        getattr(self, action)(*self._pick(at), at, other)

    def _pick(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tensors[at % len(self.tensors)]

    def write(self, x, twin, at, other) -> None:
        for tensor in (x, twin):
            tensor[other % LENGTH :].add_(other)

    def view(self, x, twin, at, other) -> None:
        views = [lambda t: t.view(-1), lambda t: t.clone(), lambda t: t.detach()]
        self.tensors.append((views[other % 3](x), views[other % 3](twin)))

    def both(self, x, twin, at, other) -> None:
        y, twin_of_y = self._pick(other)
        way = (EXECUTED["jit"], EXECUTED["lazy"], both)[other % 3]
        self.tensors.append((way(x, y), both(twin, twin_of_y)))

    def step(self, x, twin, at, other) -> None:
        list(STEPS.values())[other % len(STEPS)](x)
        scaled(twin)

    def give(self, x, twin, at, other) -> None:
        array = to_jax(x)
        self.arrays.append((list(ALIASES.values())[other % len(ALIASES)](array), np.array(array)))

    def take(self, x, twin, at, other) -> None:
        if self.arrays:
            array, snapshot = self.arrays[at % len(self.arrays)]
            self.tensors.append((from_jax(jnp.asarray(array)), torch.from_numpy(snapshot.copy())))

    def make(self, x, twin, at, other) -> None:
        array = jnp.arange(float(LENGTH)) * (at + 1)
        self.tensors.append((from_jax(array), torch.from_numpy(np.array(array))))
        self.arrays.append((array.addressable_data(0), np.array(array)))

    def compute(self, x, twin, at, other) -> None:
        if self.arrays:
            array, snapshot = self.arrays[at % len(self.arrays)]
            self.arrays.append((_DOUBLED(array), snapshot * 2))

    def drop(self, x, twin, at, other) -> None:
        if len(self.tensors) > 1:
            del self.tensors[at % len(self.tensors)]
        if len(self.arrays) > 1:
            del self.arrays[other % len(self.arrays)]

    def check(self) -> None:
        for x, twin in self.tensors:
            assert torch.equal(x.cpu(), twin)
        for array, snapshot in self.arrays:
            assert np.array_equal(array, snapshot)


_DOUBLED = jax.jit(lambda a: a * 2)
EXECUTED = {name: EXECUTORS[name](both) for name in ("jit", "lazy")}
ACTIONS = ["write", "view", "both", "step", "give", "take", "make", "compute", "drop"]
PROGRAMS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 8), st.integers(0, 8)), max_size=16
)


def programs(examples: int) -> Callable[..., Any]:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]

    @settings(max_examples=examples, deadline=None, suppress_health_check=checks, database=None)
    @given(PROGRAMS, st.booleans())
    def check(actions, checks_each):
        program = Program()
        for action in actions:
            program.run(*action)
            if checks_each:  # else recorded values are looked at the end only
                program.check()
        program.check()

    return check


@pytest.mark.slow
def test_random_programs():
    programs(40)()


@pytest.mark.slow
def test_many_random_programs():
    programs(1500)()
