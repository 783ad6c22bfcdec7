"""No test leaves a region of autocast open, nor keeps casts of it."""

from __future__ import annotations

import pytest
import torch

from torch_jax.dispatch import autocast


@pytest.fixture(autouse=True)
def outside_regions():
    """Every region is left when a test ends."""
    yield
    assert not torch.is_autocast_enabled("jax")
    assert not autocast._casts.found
