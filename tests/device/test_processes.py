"""Other processes: forked, spawned, sent tensors; and the end of a process."""

from __future__ import annotations

import inspect
import json
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.compare import assert_same
from tests.support.processes import script

pytestmark = pytest.mark.xdist_group("device_processes")


@pytest.fixture(scope="module")
def forks() -> dict[str, Any]:
    """What a process saw that forked children before and after it had used the device."""
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork on this platform")
    return json.loads(script("forks"))


@pytest.mark.slow
def test_a_fork_before_the_device_is_used_is_like_any_process(forks):
    assert forks["unused"] == [[[2.0, 2.0], False], 5]


def test_every_entrance_says_that_a_forked_child_has_no_device(forks):
    told, status = forks["entrances"]
    assert status == 5 and len(told) > 20
    expected = (
        "RuntimeError: Cannot re-initialize jax in forked subprocess. To use jax with "
        "multiprocessing, you must use the 'spawn' start method"
    )
    assert {name: text for name, text in told.items() if not text.startswith(expected)} == {}


def test_the_error_is_that_of_cuda():
    start = inspect.unwrap(torch.cuda._lazy_init)  # an environment may have replaced it
    source = (start.__code__.co_consts, start.__doc__)
    assert "Cannot re-initialize CUDA in forked subprocess. To use CUDA with " in str(source)


def test_a_forked_child_does_what_needs_no_device(forks):
    told, status = forks["harmless"]
    assert status == 5
    assert told == {
        "shape": [3, 2], "manual_seed": 3, "state": 16, "on the CPU": [2.0, 2.0], "a module": 2
    }  # fmt: skip
    assert forks["state"] == [[True, False], 5]


def test_a_forked_child_lets_inherited_tensors_go(forks):
    assert forks["delete"] == ["deleted", 5]


def test_locks_are_fresh_in_a_forked_child(forks):
    assert forks["lock"] == [[0, 0, 0, 0], 5]


@pytest.mark.slow
def test_workers_of_data_loaders_may_be_forked(forks):
    assert forks["loader"] == [[1.0, 2.0], [5.0, 10.0]]


def test_children_of_children_and_the_parent(forks):
    (told, status), outer = forks["grandchild"]
    assert "Cannot re-initialize jax" in told and (status, outer) == (5, 5)
    assert forks["parent"] == [2.0, 2.0]


# --- sending tensors ------------------------------------------------------------------------------


def _sent(value: Any) -> Any:
    """What arrives of a value that is sent to another process."""
    return pickle.loads(ForkingPickler.dumps(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_what_arrives_is_what_was_sent(dtype):
    base = torch.arange(12).view(3, 4).to(dtype)
    for cpu in (base, base.t(), base[1:, ::2], base[:0], base[0, 0]):
        assert_same(_sent(cpu.to("jax")), cpu.contiguous() if cpu.numel() < 2 else cpu.clone())


def test_parameters_ties_and_views_arrive_as_such():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model.to("jax")
    got, view = _sent((model, model[0].weight.detach()[1]))
    assert got[0].weight is got[1].weight and got[0].weight.is_jax
    assert isinstance(got[0].weight, nn.Parameter) and got[0].weight.requires_grad
    assert not got[0].bias.requires_grad
    for name, value in model.state_dict().items():
        assert_same(got.state_dict()[name], value.cpu())
    with torch.no_grad():
        got[0].weight.fill_(7.0)
    assert view.tolist() == [7.0, 7.0]  # they share memory there as they do here
    assert model[0].weight.max().item() < 7  # but it is a copy


def test_results_of_autograd_are_not_sent():
    results = []
    for device in ("cpu", "jax"):
        x = torch.ones(2, device=device, requires_grad=True) * 2
        with pytest.raises(RuntimeError, match="Cowardly refusing to serialize") as error:
            _sent(x)
        results.append(str(error.value))
    assert results[0] == results[1]


@pytest.mark.slow
def test_spawned_processes_are_sent_tensors_and_send_them_back():
    script("spawn")


# --- the end of a process -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["daemons", "waits", "exit"])
def test_a_process_ends_well(how):
    assert script("end", how, new=True) == "[1.0, 1.0] 200 True"


@pytest.mark.slow
def test_a_process_ends_well_while_daemons_import_jax():
    script("waking", new=True)
