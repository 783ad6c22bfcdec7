"""Two processes run every check once; this process judges their findings, check by check."""

from __future__ import annotations

import pytest

from tests.distributed import checks, world
from tests.distributed.checks import collectives, training

pytestmark = pytest.mark.xdist_group("two_processes")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str]:
    return world.differences(tmp_path_factory.mktemp("world"), "collectives", "training")


@pytest.mark.slow
@pytest.mark.parametrize("name", checks.names_of(collectives) + checks.names_of(training))
def test_together(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
