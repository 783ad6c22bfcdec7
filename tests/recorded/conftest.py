"""Each test begins as the first one: no path of operators is known."""

import pytest

import torch_jax  # noqa: F401


@pytest.fixture(autouse=True)
def _no_path_is_known():
    from torch_jax.recorded import limits

    limits.forget()
