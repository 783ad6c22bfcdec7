"""No test leaves a region of autocast open, nor keeps what was cast in it."""

from __future__ import annotations

import pytest
import torch

from torch_jax import amp


@pytest.fixture(autouse=True)
def outside_regions():
    """Every region is left when a test ends."""
    yield
    assert not torch.is_autocast_enabled("jax")
    assert not amp._casts.found
