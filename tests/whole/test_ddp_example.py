"""examples/ddp trains on device jax as over gloo on the CPU: only the two names differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import processes

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
SPAWNED = ("-m", "examples.ddp", "--nproc=2")
JAX, CPU = ("--device=jax", "--backend=jax"), ("--device=cpu", "--backend=gloo")


def numbers(folder: Path, *arguments: str, statuses: tuple[int, ...] = (0,)) -> list[float]:
    """Return the loss and the accuracy of each epoch, and the accuracy of the restored model."""
    done = processes.forked(*arguments, f"--checkpoint={folder / 'model.pt'}")
    assert done.returncode in statuses, done.stderr
    return [float(number) for number in re.findall(r"\d\.\d+", done.stdout)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> list[float]:
    """The numbers of two processes on the CPU.

    One may abort after its last line: Python ends while a thread of gloo still holds a tensor
    (https://github.com/pytorch/pytorch/pull/179291).
    """
    return numbers(tmp_path_factory.mktemp("cpu"), *SPAWNED, *CPU, statuses=(0, 1))


@pytest.mark.slow
def test_losses_of_two_processes_are_those_of_the_cpu(expected, tmp_path):
    assert len(expected) == 9 and expected[6] < 0.7 * expected[0]
    assert numbers(tmp_path, *SPAWNED, *JAX) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_torchrun_starts_the_same_program(expected, tmp_path):
    loss, accuracy, restored = numbers(tmp_path, *TORCHRUN, "examples.ddp", *JAX, "--epochs=1")
    assert [loss, accuracy] == pytest.approx(expected[:2], rel=1e-3)
    assert restored == accuracy
