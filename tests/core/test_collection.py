"""The garbage collector is paused: the blocks that pause it, and the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from torch_jax._private import pytorch
from torch_jax.core.collection import no_collection


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_one_inside_another_leaves_the_threshold_as_it_was():
    gc.set_threshold(123, 4, 5)
    with no_collection():
        with no_collection():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == (123, 4, 5)


def test_an_exception_leaves_the_threshold_as_it_was():
    gc.set_threshold(123, 4, 5)
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.get_threshold() == (123, 4, 5)


def test_a_threshold_that_is_set_meanwhile_stays():
    with no_collection():
        gc.set_threshold(321)
    assert gc.get_threshold()[0] == 321


def test_who_had_switched_it_off_has_it_off():
    gc.set_threshold(0)
    with no_collection():
        pass
    assert gc.get_threshold()[0] == 0


def test_an_object_that_pytorch_carries_is_held_and_let_go():
    carried: list = []
    count = sys.getrefcount(carried)
    for _ in range(3):
        pytorch.carry("a test", carried)
    assert sys.getrefcount(carried) == count + 1
    pytorch.carry("a test", None)
    assert sys.getrefcount(carried) == count
