"""DTensor, tensor parallelism and FSDP2 in two processes."""

from __future__ import annotations

import pytest

from tests.distributed import checks, world
from tests.distributed.checks import sharding


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str]:
    return world.differences(tmp_path_factory.mktemp("world"), "sharding")


@pytest.mark.slow
@pytest.mark.parametrize("name", checks.names_of(sharding))
def test_sharded(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
