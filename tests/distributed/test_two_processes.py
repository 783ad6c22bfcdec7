"""Two processes run every check once; what they found is looked at here, check by check."""

from __future__ import annotations

import pytest

from tests.distributed import checks, world
from tests.distributed.checks import collectives, compiled, training

NAMES = [name for module in (collectives, training, compiled) for name in checks.names_of(module)]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str]:
    return world.differences(
        tmp_path_factory.mktemp("world"), "collectives", "training", "compiled"
    )


@pytest.mark.parametrize("name", NAMES)
def test_together(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
