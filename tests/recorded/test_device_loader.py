"""``torch_jax.DeviceLoader``: batches of all kinds are moved ahead of time."""

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

from tests.support.lazily import counted, is_pending
from torch_jax import DeviceLoader, config, lazy


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


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_batches_of_a_data_loader(shuffle):
    plain = DataLoader(TensorDataset(torch.arange(10.0), torch.arange(10)), 4, shuffle)
    loader = DeviceLoader(plain)
    assert len(loader) == 3
    found = []
    for each in (loader, plain):
        torch.manual_seed(1)
        batches = [batch for _ in range(2) for batch in each]
        kind = "jax" if each is loader else "cpu"
        assert all(one.device.type == kind for batch in batches for one in batch)
        found.append([[one.tolist() for one in batch] for batch in batches])
    assert found[0] == found[1]


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
    (batch,) = DeviceLoader([given])
    assert type(batch) is type(given)
    for one, two in zip(tensors(batch), tensors(given), strict=True):
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
    ((a, b),) = DeviceLoader([[x, x]])
    assert a is b


def test_batches_are_loaded_ahead_and_no_further():
    loaded: list[int] = []
    batches = iter(DeviceLoader((loaded.append(n) or ones() for n in range(100)), ahead=3))
    next(batches)
    deadline = time.monotonic() + 10
    while len(loaded) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(loaded) == 4
    batches.close()


def test_a_loop_that_is_left_stops_the_thread():
    loader = DeviceLoader([ones() for _ in range(50)])
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
        for batch in DeviceLoader(load()):
            seen.append(batch)
    assert len(seen) == at and any(entry.name == "load" for entry in told.traceback)


def test_nothing_to_load():
    assert list(DeviceLoader([])) == []
    with pytest.raises(ValueError, match="ahead"):
        DeviceLoader([], ahead=0)
    with pytest.raises(TypeError):
        len(DeviceLoader(iter([])))


def test_each_batch_is_a_step_in_lazy_mode():
    with lazy(), counted() as did:
        results = []
        for x in DeviceLoader([torch.full((2,), float(n)) for n in range(5)]):
            assert not any(map(is_pending, results))
            results.append((x + 1) * 2)
            assert is_pending(results[-1])
    assert (did.graphs, did.compiles, did.early) == (5, 1, 0)
    assert [one[0].item() for one in results] == [2, 4, 6, 8, 10]


def test_nothing_is_recorded_on_the_thread_that_loads():
    with config.temporarily("mode", "lazy"):
        pending = [is_pending(x) for x in DeviceLoader(ones().to("jax") * n for n in range(3))]
    assert pending[1:] == [False, False]  # the first is loaded by this thread
