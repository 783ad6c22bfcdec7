"""What a function under jit cannot skip is an error in these tests, where nothing else is said."""

import pytest

from torch_jax import config


@pytest.fixture(autouse=True)
def _unproven_is_an_error(monkeypatch):
    # not by ``config.set``, which drops what is compiled
    monkeypatch.setitem(config._values, "jit_fallback", "error")
