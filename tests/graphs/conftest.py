"""Each test starts with a Dynamo that has compiled nothing."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Dynamo remembers how often code was compiled, and gives up after a while."""
    torch._dynamo.reset()
    torch.manual_seed(0)
