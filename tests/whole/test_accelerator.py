"""The run for the day a card is there, by its cheapest sections."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import accelerator
from benchmarks.accelerator import SECTIONS, Section


def run(monkeypatch, path, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["accelerator", *arguments, f"--out={path}"])
    return accelerator.main()


def test_sections_leave_their_facts_in_a_file(monkeypatch, tmp_path, capfd):
    path = tmp_path / "found.json"
    assert run(monkeypatch, path, "--quick", "doctor", "attention") == 0
    found = json.loads(path.read_text())
    assert [one["error"] for one in found.values()] == ["", ""]
    assert {"versions", "self-test", "conditions"} <= found["doctor"]["facts"].keys()
    titles = [f"2 x 2 x 128 x 64 {dtype}, causal" for dtype in ("bfloat16", "float32")]
    assert list(found["attention"]["facts"]) == titles
    assert "attention: done" in capfd.readouterr().out


def test_a_section_that_fails_keeps_what_it_has_found(monkeypatch, tmp_path):
    def fail(found, is_quick):
        found["before"] = is_quick
        assert json.loads((tmp_path / "found").read_text())["facts"] == {"before": True}
        raise ValueError("a first line\nand a second")

    monkeypatch.setitem(SECTIONS, "smoke", Section(fail, 1))
    assert run(monkeypatch, tmp_path / "found", "smoke", "--quick", "--here") == 0
    found = json.loads((tmp_path / "found").read_text())
    assert found == {"facts": {"before": True}, "error": "ValueError: a first line"}


def test_a_section_that_takes_too_long_costs_itself_only(monkeypatch, tmp_path):
    monkeypatch.setitem(SECTIONS, "smoke", Section(accelerator.smoke, 0))
    assert run(monkeypatch, tmp_path / "found", "smoke") == 1
    found = json.loads((tmp_path / "found").read_text())
    assert found["smoke"]["error"] == "it took longer than 0 s"


def test_a_section_that_does_not_exist_is_refused(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path / "found", "smok")
    assert "no section is called smok; there are doctor, smoke" in capsys.readouterr().err


def test_all_sections_end_within_25_minutes():
    assert sum(section.most_seconds for section in SECTIONS.values()) < 25 * 60
