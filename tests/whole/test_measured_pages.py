"""The pages of what was measured say what the results say."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from tests.support.processes import ROOT, output

RUN = {"torch": "2", "jax": "1", "device": "cpu", "date": "2030-01-02"}
CASES = [
    {**RUN, "samples": 3, "week": "", "entries": 4},
    ["forward float32", "add", "float32", True],
    ["backward", "add", "float32", False],
    ["forward float32", "linalg.svd", "float32", True],
    ["recorded", "add", "float32", True],
    ["errors", "add", "", False],
    ["modules", "nn.ReLU", "float32", True],
]
RATIOS = [
    {**RUN, "threads": 1, "cores": 2, "load": 3.5, "names": ["jit"]},
    {"title": "A <step>", "ours": "jit", "theirs": "JAX", "ratio": 0.5, "wanted": 1, "spread": 0.1},
    {"title": "A <step>", "ours": "jit", "theirs": "CPU", "ratio": 9.0, "wanted": None},
]


@pytest.fixture
def made(tmp_path):
    """A function that makes a page of results, and returns it with the texts of its picture."""

    def make(name, results):
        (tmp_path / "results").write_text("".join(json.dumps(line) + "\n" for line in results))
        output(f"docs/{name}.py", str(tmp_path / "results"), str(tmp_path))
        picture = ET.fromstring((tmp_path / f"{name}.svg").read_text())
        return (tmp_path / f"{name}.md").read_text(), ["".join(at.itertext()) for at in picture]

    return make


def test_conformance_counts_entries_that_pass_in_all_their_cases(made):
    page, texts = made("conformance", CASES)
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert ["| eager", "1", "2", "50.0"] in [row[:4] for row in rows]
    assert ["| recorded", "1", "1", "100.0"] in [row[:4] for row in rows]
    assert ["| backward", "0", "1", "0.0", "0", "1", "0.0 |"] in rows
    assert ["| eager", "`add` |"] in rows  # errors are another question
    first = texts[texts.index("torch") : texts.index("torch.linalg")]
    assert [text for text in first if "%" in text] == ["0.0 %", "100 %"]
    assert "2030-01-02" in page and "all dtypes" in page


def test_performance_says_that_the_machine_was_busy(made):
    page, texts = made("performance", RATIOS)
    assert "| jit | JAX | 0.50 | 10% | 1 |\n| jit | CPU | 9.00 |  |  |" in page
    assert "**The machine was busy**: 3.5 processes" in page
    assert {"A <step>", "jit / JAX", "0.50", "9.00"} <= set(texts)


@pytest.mark.parametrize("name", ["conformance", "performance"])
def test_the_pages_of_today_have_their_pictures(name):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    assert f"]({name}.svg)" in page
    assert len(ET.parse(ROOT / "docs" / f"{name}.svg").getroot()) > 10


def test_the_short_picture_is_of_what_runs_beside_pytorch(made, tmp_path):
    row = {"title": "GPT", "ours": "torch_jax.jit", "theirs": "PyTorch eager", "ratio": 0.7}
    page, _ = made("performance", [*RATIOS, row | {"wanted": 0.8}])
    picture = (tmp_path / "speed.svg").read_text()
    assert "0.70" in picture and "GPT" in picture and "9.00" not in picture
    assert "(speed.svg)" in page
