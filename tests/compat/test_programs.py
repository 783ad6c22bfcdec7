"""Programs of PyTorch/XLA run with other imports, in one process and in two."""

from __future__ import annotations

import re

import pytest

from tests.support import processes

WAYS = ("optimizer_step", "ddp", "compile")


def said(way: str, count: int, **variables: str | None) -> str:
    own = {"WAY": way, "CPU_NUM_DEVICES": str(count), "TORCH_JAX_MODE": None}
    return processes.output("-m", "tests.compat.programs.train", **own | variables)


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"step \d: (\d\.\d+)", text)]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_one_process(way):
    text = said(way, 1)
    found = losses(text)
    assert len(found) == 8 and found[-1] < 0.5 * found[0], text
    assert "processes 1 1 CPU\nrank 0" in text, text


@pytest.mark.slow
def test_two_processes_agree_in_every_way():
    reduced, wrapped, eager = (
        said("optimizer_step", 2),
        said("ddp", 2),
        said("optimizer_step", 2, TORCH_JAX_MODE="eager"),
    )
    assert len(losses(reduced)) == 4, reduced
    assert losses(wrapped) == pytest.approx(losses(reduced), abs=2e-5)
    assert losses(eager) == pytest.approx(losses(reduced), abs=2e-5)
    assert "processes 2 2 CPU\nrank 0, rank 1" in reduced, reduced
