"""Tensors over eight virtual devices: each test is one process of many checks."""

from __future__ import annotations

import json

import pytest

import torch_jax
from tests.support import processes
from tests.support.run_on_mesh import CHECKS


def check(kind: str) -> None:
    done = json.loads(processes.output("-m", "tests.support.run_on_mesh", kind).splitlines()[-1])
    assert done["checks"] == list(CHECKS[kind])
    assert not done["faults"], "\n".join(done["faults"].values())


def test_quick_checks():
    check("quick")


@pytest.mark.slow
def test_slow_checks():
    check("slow")


def test_one_device_says_how_to_have_more():
    with pytest.raises(ValueError, match="data=2000.*needs 2000 devices, and there"):
        torch_jax.mesh(data=2000)
