"""examples/ddp trains on device jax as over gloo on the CPU: only the two names differ."""

from __future__ import annotations

import re

import pytest

from tests.support import processes

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")


def numbers(start: tuple[str, ...], device: str, backend: str, *more: str) -> list[float]:
    names = (f"--device={device}", f"--backend={backend}")
    said = processes.output(*start, "examples.ddp", *names, *more)
    return [float(number) for number in re.findall(r"\d\.\d+", said)]


@pytest.mark.slow
def test_losses_of_two_processes_are_those_of_the_cpu(tmp_path):
    spawned = ("--nproc=2", f"--checkpoint={tmp_path / 'model.pt'}")
    expected = numbers(("-m",), "cpu", "gloo", *spawned)
    assert len(expected) == 9 and expected[6] < 0.7 * expected[0]
    assert numbers(("-m",), "jax", "jax", *spawned) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_torchrun_starts_the_same_program(tmp_path):
    few = ("--epochs=1", f"--checkpoint={tmp_path / 'model.pt'}")
    expected = numbers(TORCHRUN, "cpu", "gloo", *few)
    assert numbers(TORCHRUN, "jax", "jax", *few) == pytest.approx(expected, rel=1e-3)
