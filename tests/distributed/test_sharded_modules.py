"""DTensor, tensor parallelism, FSDP2, and DDP's options, in two processes."""

from __future__ import annotations

import pytest

from tests.distributed import checks, world
from tests.distributed.checks import sharding, training_options


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str]:
    return world.differences(tmp_path_factory.mktemp("world"), "sharding", "training_options")


@pytest.mark.slow
@pytest.mark.parametrize("name", checks.names_of(sharding) + checks.names_of(training_options))
def test_sharded(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
