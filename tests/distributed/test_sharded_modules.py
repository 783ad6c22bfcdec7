"""DTensor, tensor parallelism, FSDP2, DDP's options, and checkpoints, in two processes."""

from __future__ import annotations

import pytest

from tests.distributed import world
from tests.distributed.checks import checkpoints, names_of, sharding, training_options

MODULES = "checkpoints", "sharding", "training_options"
NAMES = [name for module in (checkpoints, sharding, training_options) for name in names_of(module)]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str]:
    return world.differences(tmp_path_factory.mktemp("world"), *MODULES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sharded(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
