"""``torch_jax.DeviceLoader``: batches are moved ahead of time, whatever they are made of."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset
from transformers import BatchEncoding

import torch_jax
from tests.support.lazily import counted, is_pending


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


@dataclasses.dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    pairs: list[Pair]
    size: int = dataclasses.field(init=False, default=3)


def loaders() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "DeviceLoader"}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert loaders() == set()


def ones() -> torch.Tensor:
    return torch.ones(2)


def test_the_batches_of_a_data_loader():
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    loader = torch_jax.DeviceLoader(DataLoader(data, batch_size=4))
    assert len(loader) == 3
    for _ in range(2):
        batches = list(loader)
        assert [x.tolist() for x, _ in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert all(one.device.type == "jax" for batch in batches for one in batch)


def test_shuffled_alike():
    data = TensorDataset(torch.arange(20.0))
    plain = DataLoader(data, batch_size=5, shuffle=True)
    torch.manual_seed(1)
    expected = [x.tolist() for _ in range(2) for (x,) in plain]
    torch.manual_seed(1)
    actual = [x.tolist() for _ in range(2) for (x,) in torch_jax.DeviceLoader(plain)]
    assert actual == expected


CONTAINERS: dict[str, Any] = {
    "tensor": ones(),
    "list": [ones(), 3, "text", None],
    "tuple": (ones(), (ones(), b"bytes")),
    "dict": {"x": ones(), "deep": {"y": [ones()]}},
    "ordered": collections.OrderedDict(a=ones(), b=2),
    "default": collections.defaultdict(list, x=[ones()]),
    "deque": collections.deque([ones(), 1], maxlen=3),
    "namedtuple": Pair(ones(), "name"),
    "dataclass": Batch(ones(), [Pair(ones(), "deep")]),
    "size": torch.Size((2, 3)),
    "packed": pack_sequence([ones(), ones()]),
    "encoding": BatchEncoding({"input_ids": ones(), "names": ["a"]}),
}


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in a batch."""
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if hasattr(value, "items"):
        value = [one for _, one in value.items()]
    if isinstance(value, list | tuple | collections.deque):
        return [found for one in value for found in tensors(one)]
    return []


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers(name):
    given = CONTAINERS[name]
    (batch,) = torch_jax.DeviceLoader([given])
    assert type(batch) is type(given)
    expected, actual = tensors(given), tensors(batch)
    assert len(actual) == len(expected)
    for one, two in zip(actual, expected, strict=True):
        assert two.device.type == "cpu" and one.tolist() == two.tolist()
        assert one.device.type == "jax" or (name == "packed" and one.dtype == torch.int64)
    if name == "dataclass":
        assert batch.size == 3 and batch.pairs[0].name == "deep"
    if name == "default":
        assert batch["new"] == []
    if name == "deque":
        assert batch.maxlen == 3 and batch[1] == 1


def test_one_tensor_in_two_places_stays_one():
    x = ones()
    ((a, b),) = torch_jax.DeviceLoader([[x, x]])
    assert a is b


def test_batches_are_loaded_ahead_and_no_further():
    loaded: list[int] = []

    def load() -> Iterator[torch.Tensor]:
        for n in range(100):
            loaded.append(n)
            yield torch.full((2,), float(n))

    batches = iter(torch_jax.DeviceLoader(load(), ahead=3))
    next(batches)
    deadline = time.monotonic() + 10
    while len(loaded) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(loaded) == 4
    batches.close()


def test_a_loop_that_is_left_stops_the_thread():
    loader = torch_jax.DeviceLoader([ones() for _ in range(50)])
    for _ in loader:
        assert len(loaders()) <= 1
        break
    assert loaders() == set()
    assert len(list(loader)) == 50


@pytest.mark.parametrize("at", [0, 1, 4])
def test_errors_are_raised_in_the_loop(at):
    def load() -> Iterator[torch.Tensor]:
        for n in range(10):
            if n == at:
                raise KeyError("no such file")
            yield ones()

    seen = []
    with pytest.raises(KeyError, match="no such file") as told:
        for batch in torch_jax.DeviceLoader(load()):
            seen.append(batch)
    assert len(seen) == at and any(entry.name == "load" for entry in told.traceback)


def test_nothing_to_load():
    assert list(torch_jax.DeviceLoader([])) == []
    with pytest.raises(ValueError, match="ahead"):
        torch_jax.DeviceLoader([], ahead=0)
    with pytest.raises(TypeError):
        len(torch_jax.DeviceLoader(iter([])))


def test_each_batch_is_a_step_in_lazy_mode():
    with torch_jax.lazy(), counted() as did:
        results = []
        for x in torch_jax.DeviceLoader([torch.full((2,), float(n)) for n in range(5)]):
            if results:
                assert not is_pending(results[-1])
            results.append((x + 1) * 2)
            assert is_pending(results[-1])
    assert (did.graphs, did.compiles, did.early) == (5, 1, 0)
    assert [one[0].item() for one in results] == [2, 4, 6, 8, 10]


def test_nothing_is_recorded_on_the_thread_that_loads():
    def load() -> Iterator[torch.Tensor]:
        for n in range(3):
            yield ones().to("jax") * n

    torch_jax.config.set("mode", "lazy")
    try:
        pending = [is_pending(x) for x in torch_jax.DeviceLoader(load())]
    finally:
        torch_jax.config.set("mode", "eager")
    assert pending[1:] == [False, False]  # the first is loaded by this thread
