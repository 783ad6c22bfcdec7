"""Begin and end of programs of many processes: each test starts processes, which takes seconds."""

from __future__ import annotations

import pytest

from tests.support import processes, ranks

pytestmark = pytest.mark.slow
PROGRAMS = "tests.distributed.programs"


def _lines(text: str) -> list[str]:
    """The lines without Gloo's, which several processes write piece by piece into each other."""
    lines = [line for line in text.splitlines() if "connected peer ranks" not in line]
    return [line for line in lines if line and not line.startswith(("[Gloo]", "[rank"))]


def _answers(done: processes.Done, *beginnings: str) -> list[str]:
    """Return the lines on stderr that begin so; Gloo writes into the lines on stdout."""
    return [line for line in done.stderr.splitlines() if line.startswith(beginnings)]


@pytest.mark.parametrize("rank", [0, 1])
def test_others_are_told_who_has_ended(rank):
    ended = ranks.run("-m", f"{PROGRAMS}.a_rank_ends", str(rank))
    assert ended[rank][0] == -9
    status, text = ended[1 - rank]
    lines = _lines(text)
    assert status == 0, text
    assert len(lines) == 4 and lines[3] == "True", text
    for line, name in zip(lines, ("allreduce", "recv", "barrier"), strict=False):
        assert line.startswith(f"DistBackendError: {name} failed on device 'jax': rank {rank} has")


@pytest.mark.parametrize("how", [[], ["compiled"]])
@pytest.mark.parametrize("seed", [1, 2])
def test_training_ends_where_a_rank_does(seed, how):
    ended = ranks.run("-m", f"{PROGRAMS}.training_ends", str(seed), *how, size=3)
    assert sorted(status for status, _ in ended) == [-9, 0, 0], ended
    assert [_lines(text) for status, text in ended if status == 0] == [["True"]] * 2, ended


def test_a_rank_that_is_late():
    (status, text), _ = ranks.run("-m", f"{PROGRAMS}.a_rank_is_late")
    assert _lines(text)[:2] == ["2 True True", "[2.0, 2.0]"], text
    assert status == 0


def test_the_device_must_not_have_been_used_before():
    for status, text in ranks.run("-m", f"{PROGRAMS}.used_before"):
        assert status == 1
        assert "move torch.distributed.init_process_group('jax') above" in text


def test_a_group_after_a_group():
    for status, text in ranks.run("-m", f"{PROGRAMS}.again"):
        assert (status, _lines(text)) == (
            0,
            ["[4.0, 4.0, 4.0] [20.0, 20.0, True, 20.0, 20.0, True]"],
        ), text


def test_four_processes():
    for status, text in ranks.run("-m", f"{PROGRAMS}.again", size=4):
        assert (status, _lines(text)) == (
            0,
            ["[16.0, 16.0, 16.0] [40.0, 40.0, True, 40.0, 40.0, True]"],
        ), text


def test_spawn():
    done = processes.forked("-m", f"{PROGRAMS}.spawned")
    assert done.returncode == 0, done.stderr
    assert _answers(done, "sum", "True", "False") == ["sum [3.0, 3.0]", "True"], done.stderr


def test_torchrun():
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = processes.forked(*launch, "-m", "tests.distributed.programs.sums")
    assert done.returncode == 0, done.stderr
    assert sorted(_answers(done, "0 ", "1 ")) == ["0 3.0", "1 3.0"], done.stderr
