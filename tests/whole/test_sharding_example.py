"""examples/sharding trains a model on eight devices as on one."""

from __future__ import annotations

import re

import pytest

from tests.support import processes


@pytest.mark.slow
def test_losses_on_a_mesh_are_those_of_one_device():
    done = processes.run("-W", "error::UserWarning", "-m", "examples.sharding", XLA_FLAGS=None)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"one device (\d+\.\d+), eight (\d+\.\d+)", done.stdout)
    one, eight = ([float(number) for number in numbers] for numbers in zip(*losses, strict=True))
    assert len(one) == 12 and one[-1] < 0.9 * one[0]
    assert eight == pytest.approx(one, rel=1e-4)
    assert "layers.0.down.weight             [64, 128]  ('data', 'model')  4.0 KiB" in done.stdout
