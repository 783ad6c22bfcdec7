"""A CPU in the place of a chip: programs for a target can be read and run."""

import jax
import pytest

from torch_jax import target


@pytest.fixture(autouse=True)
def chip_is_cpu(monkeypatch):
    """Describe the first device of the CPU where a target's compiler would describe its chips."""
    monkeypatch.setattr(target, "_topology", lambda chosen: jax.local_devices()[: chosen.chips])
