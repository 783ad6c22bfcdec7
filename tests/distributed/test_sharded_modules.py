"""DTensor, tensor parallelism, FSDP2, pipelines, and DDP's options, in two processes."""

from __future__ import annotations

import pytest

from tests.distributed import checks, world
from tests.distributed.checks import pipelines, sharding, training_options

pytestmark = pytest.mark.xdist_group("sharded_modules")
MODULES = {"sharding": sharding, "pipelines": pipelines, "training_options": training_options}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str]:
    return world.differences(tmp_path_factory.mktemp("world"), *MODULES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for m in MODULES.values() for name in checks.names_of(m)])
def test_sharded(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
