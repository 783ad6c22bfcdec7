"""Checkpoints between two processes and one, and between the device and the CPU."""

from __future__ import annotations

import pytest

from tests.distributed import checks, world
from tests.distributed.checks import checkpoints

pytestmark = pytest.mark.xdist_group("checkpoints")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str]:
    return world.differences(tmp_path_factory.mktemp("world"), "checkpoints")


@pytest.mark.slow
@pytest.mark.parametrize("name", checks.names_of(checkpoints))
def test_saved_and_loaded(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
