"""The tests of this folder run in one process that has eight devices; pytest waits for it here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.mesh import server


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give all tests to one process of xdist, so that one server is started."""
    item.add_marker(pytest.mark.xdist_group("mesh"))


@pytest.fixture(scope="package", autouse=True)
def _ends() -> Iterator[None]:
    """The process ends after the last test, which frees a gigabyte."""
    yield
    server.end()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Have a test run over there, where this process is not the one that has the devices."""
    if server.is_here():
        return None
    for outcome, text in server.run(pyfuncitem.module.__name__, pyfuncitem.name):
        if outcome == "skipped":
            pytest.skip(text)
        pytest.fail(text, pytrace=False)
    return True
