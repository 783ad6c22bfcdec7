"""Programs that do not use the device give the same results without this package."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.startup.cpu_programs import programs
from tests.support.processes import output

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cpu_programs")]
NAMES = list(programs())
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
ASKS = "functional_tensor_mode"


def run(*arguments: str, **variables: str) -> dict[str, Any]:
    """Return what programs gave in a process of their own."""
    text = output("-m", "tests.startup.cpu_programs", *arguments, new=True, **variables)
    return json.loads(text.splitlines()[-1])


@pytest.fixture(scope="session")
def runs(request) -> dict[str, dict[str, Any]]:
    """Return what the programs gave without the device, with it asleep, and after a use of it."""
    asked = {item.name for item in request.session.items if item.path == Path(__file__)}
    names = [name for name in NAMES if any(f"[{name}]" in one for one in asked)] or NAMES
    with ThreadPoolExecutor() as pool:
        without = pool.submit(run, *names, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        asleep, awake = pool.submit(run, *names), pool.submit(run, "--awake", *names)
        return {"without": without.result(), "asleep": asleep.result(), "awake": awake.result()}


@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_what_it_gives_without_the_package(runs, name):
    expected, actual = (runs[kind]["outcomes"][name] for kind in ("without", "asleep"))
    if name in DIFFERENCES:
        assert actual != expected
    else:
        assert actual == expected


@pytest.mark.parametrize("name", [name for name in NAMES if name != ASKS])
def test_a_program_gives_the_same_once_the_device_has_been_used(runs, name):
    parts = slice(1 if name in FORKS else None)
    assert runs["awake"]["outcomes"][name][parts] == runs["asleep"]["outcomes"][name][parts]


def test_programs_do_not_wake_the_device(runs):
    assert not runs["without"]["is used"]
    assert not runs["asleep"]["is used"]


def test_all_are_there():
    assert len(NAMES) > 150 and set(NAMES) >= DIFFERENCES.keys() | set(FORKS)
