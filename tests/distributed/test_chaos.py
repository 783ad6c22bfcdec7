"""Processes are killed; their saved files are whole, and the others get an error."""

from __future__ import annotations

import pytest

from tests.distributed import chaos
from tests.support import processes


@pytest.mark.slow
def test_training_goes_on_after_kills(tmp_path):
    first, second = chaos.chaos(tmp_path, 2, seed=3)
    assert second.began == (first.saved or 0) < second.done


@pytest.mark.slow
def test_a_checkpoint_is_whole_whenever_its_writer_is_killed():
    kills, saves = map(
        int, processes.output("-m", "tests.distributed.programs.killed_saves").split()
    )
    assert kills == 30 and saves > 10
