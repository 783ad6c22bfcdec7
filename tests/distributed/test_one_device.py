"""A mesh where there is one device."""

from __future__ import annotations

import pytest

import torch_jax


def test_one_device_says_how_to_have_more():
    with pytest.raises(ValueError, match="data=2000.*needs 2000 devices, and there"):
        torch_jax.mesh(data=2000)
