"""Collectives that do not match are errors in all processes, which name the calls of both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import ranks

PROGRAM = "tests.distributed.programs.mismatches"
CALLS = {
    "kind": ("allreduce(SUM, float32[4])", "broadcast(root 0, float32[4])"),
    "shape": ("allreduce(SUM, float32[4])", "allreduce(SUM, float32[3])"),
    "dtype": ("allreduce(SUM, float32[4])", "allreduce(SUM, int32[4])"),
    "root": ("broadcast(root 0, float32[4])", "broadcast(root 1, float32[4])"),
    "op": ("allreduce(SUM, float32[4])", "allreduce(MAX, float32[4])"),
    "host": ("allreduce(SUM, float32[4])", "gather(root 0, float32[4])"),
    "barrier": ("barrier()", "allreduce(SUM, float32[4])"),
    "known": ("allreduce(SUM, float32[2])", "broadcast(root 0, float32[4])"),
}


@pytest.mark.slow
def test_calls_that_do_not_match(tmp_path):
    file = tmp_path / "said"
    ended = ranks.run("-m", PROGRAM, str(file))
    assert all(status == 0 for status, _ in ended), ended
    for rank in range(2):
        said = json.loads(Path(f"{file}.{rank}").read_text())
        assert said["total"] == [2.0] * 4
        assert "collectives do not match" in said["later"][0]
        for name, (first, second) in CALLS.items():
            text, seconds = said[name]
            assert f"rank 0 calls {first} (" in text, (name, text)
            assert f"rank 1 calls {second} (" in text, (name, text)
            assert text.count("mismatches.py:") == 2, (name, text)
            assert seconds < (10 if name == "known" else 5), (name, seconds)


@pytest.mark.slow
def test_known_ways_in_detail_and_different_groups():
    detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    ended = ranks.run("-m", "tests.distributed.programs.crossed", changes=lambda rank: detail)
    assert all("differ: collectives do not match: rank 0 calls all" in text for _, text in ended)
    lines = [next(line for line in text.splitlines() if "told:" in line) for _, text in ended]
    calls = [f"allreduce(SUM, float32[{4 - rank}]) of group " for rank in range(2)]
    for rank, line in enumerate(lines):
        assert "no result within 4 s" in line, line
        assert f"this is {calls[rank]}" in line and "crossed.py:" in line, line
        assert f"rank {1 - rank} waits in {calls[1 - rank]}" in line, line
