"""Programs that do not use the device give what they give where this package is not installed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.processes import output

# What programs are told that ask which accelerator there is, for it is this device; programs of one
# reason may differ, and must.
DIFFERENCES = {
    "accelerators": "there is an accelerator",
    "accelerator_index": "there is an accelerator",
    "accelerator_sync": "there is an accelerator",
    "device_module_default": "the module of the accelerator",
    "loader_pinned": "no warning that there is no accelerator",
    "loader_workers_pinned": "no warning that there is no accelerator",
    "pin_tensor": "pinning for an accelerator: nothing to do, where it cannot be done without one",
    "storage_pin": "pinning for an accelerator",
    "pin_empty": "pinning for an accelerator",
    "profiler_default": "the profiler lists an activity of the device",
    "generator_subclass": "torch.Generator says that its module is torch",
    "optim_capturable": "a message lists devices by their names, of which one is jax",
}
# JAX warns of forks, in a process that has used it.
FORKS = ("forked", "loader_workers", "loader_workers_pinned", "mp_fork", "mp_pool")
# There a TorchFunctionMode hears that data_ptr() asks for the device.
AWAKE = (*FORKS, "functional_tensor_mode")


def run(*arguments: str, **variables: str) -> dict[str, Any]:
    """What all programs gave in a process of their own."""
    text = output("-m", "tests.support.cpu_programs", *arguments, **variables)
    return json.loads(text.splitlines()[-1])


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    """What they gave without the device, with it asleep, and after a use of it."""
    with ThreadPoolExecutor() as pool:
        without = pool.submit(run, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        asleep, awake = pool.submit(run), pool.submit(run, "--awake")
        return {"without": without.result(), "asleep": asleep.result(), "awake": awake.result()}


@pytest.mark.slow
def test_programs_on_the_cpu_give_what_they_give_without_the_package(runs):
    expected, actual = runs["without"]["outcomes"], runs["asleep"]["outcomes"]
    assert len(expected) > 150
    different = {name for name in expected if actual[name] != expected[name]}
    told = {name: (expected[name], actual[name]) for name in different - DIFFERENCES.keys()}
    assert not told, told
    assert different == DIFFERENCES.keys()


@pytest.mark.slow
def test_programs_on_the_cpu_do_not_wake_the_device(runs):
    assert not runs["without"]["is used"]
    assert not runs["asleep"]["is used"]


@pytest.mark.slow
def test_programs_on_the_cpu_give_the_same_once_the_device_has_been_used(runs):
    expected, actual = runs["asleep"]["outcomes"], runs["awake"]["outcomes"]
    different = {name for name in expected if actual[name] != expected[name]}
    told = {n: (expected[n], actual[n]) for n in different if n not in AWAKE}
    assert not told, told
    assert all(actual[name][0] == expected[name][0] for name in FORKS)
