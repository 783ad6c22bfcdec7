"""Two processes run functions with collectives under jit; this process judges each check."""

from __future__ import annotations

import pytest

from tests.distributed import checks, world
from tests.distributed.checks import compiled

pytestmark = pytest.mark.xdist_group("compiled")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str]:
    return world.differences(tmp_path_factory.mktemp("world"), "compiled")


@pytest.mark.slow
@pytest.mark.parametrize("name", checks.names_of(compiled))
def test_together(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
