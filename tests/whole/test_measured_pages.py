"""The pages of measurements agree with the results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from tests.support.processes import ROOT, output, run

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
QUIET = {
    **RUN, "machine": "A machine", "cores": 2, "threads": 1, "load": 0.5, "load_after": 0.0
}  # fmt: skip
STEP = {"benchmark": "jit", "title": "A <step>", "ours": "jit", "theirs": "JAX", "ratio": 0.5}
STEP |= {"wanted": 1, "spread": 0.1, "mode": "traced / eager", "conditions": QUIET}
MODEL = {"benchmark": "speed", "title": "A model", "ours": "torch_jax.jit", "ratio": 0.7}
MODEL |= {"theirs": "PyTorch eager", "wanted": None, "mode": "recorded", "conditions": QUIET}
MADE = (
    "README.md",
    *(f"docs/{name}" for name in ("performance.md", "performance.svg", "speed.svg")),
)
RESULTS = "docs/performance.jsonl"


def lines(rows):
    """Rows as a file of results has them."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def texts(path):
    """The texts of a picture."""
    return ["".join(at.itertext()) for at in ET.parse(path).getroot()]


@pytest.fixture
def conformance(tmp_path):
    """The page of conformance, and the texts of its picture."""
    (tmp_path / "results").write_text(lines(CASES))
    output("docs/conformance.py", str(tmp_path / "results"), str(tmp_path), new=True)
    return (tmp_path / "conformance.md").read_text(), texts(tmp_path / "conformance.svg")


@pytest.fixture
def measured(tmp_path):
    """A function that adds rows to a copy of what is committed, and gives the folder of that."""
    (tmp_path / "docs").mkdir()
    for name in ("README.md", RESULTS):
        (tmp_path / name).write_text((ROOT / name).read_text())

    def measure(rows, code=0):
        (tmp_path / "results").write_text(lines(rows))
        done = run("docs/performance.py", str(tmp_path / "results"), str(tmp_path))
        assert done.returncode == code, done.stderr
        return tmp_path if code == 0 else done.stderr

    return measure


def test_conformance_counts_entries_that_pass_in_all_their_cases(conformance):
    page, texts = conformance
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert ["| eager", "1", "2", "50.0"] in [row[:4] for row in rows]
    assert ["| recorded", "1", "1", "100.0"] in [row[:4] for row in rows]
    assert ["| backward", "0", "1", "0.0", "0", "1", "0.0 |"] in rows
    assert ["| eager", "`add` |"] in rows  # errors are another question
    first = texts[texts.index("torch") : texts.index("torch.linalg")]
    assert [text for text in first if "%" in text] == ["0.0 %", "100 %"]
    assert "2030-01-02" in page and "all dtypes" in page


def test_what_is_committed_comes_from_the_committed_results(measured):
    folder = measured([])
    for name in (*MADE, RESULTS):
        assert (folder / name).read_text() == (ROOT / name).read_text(), name


def test_a_page_says_the_mode_of_each_row(measured):
    folder = measured([STEP, STEP | {"theirs": "CPU", "ratio": 9.0, "wanted": None}])
    page = (folder / "docs/performance.md").read_text()
    assert "| jit | JAX | 0.50 | 10% | 1 | traced / eager |" in page
    assert "| jit | CPU | 9.00 | 10% |  | traced / eager |" in page
    drawn = texts(folder / "docs/performance.svg")
    assert {"A <step>", "jit / JAX", "0.50", "9.00"} <= set(drawn)


def test_rows_replace_those_of_their_benchmark_alone(measured):
    measured([MODEL, STEP])
    old = MODEL["conditions"] | {"date": "2031-01-02", "load": 0.25}
    folder = measured([MODEL | {"ratio": 0.6, "conditions": old}])
    rows = [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]
    assert [(row["benchmark"], row["ratio"]) for row in rows] == [("speed", 0.6), ("jit", 0.5)]
    page = (folder / "docs/performance.md").read_text()  # tables of other dates say so
    assert "jax 1, 2031-01-02, with a load\nof 0.25" in page.split("## A <step>")[0]
    assert "jax 1, 2030-01-02, with a load\nof 0.5" in page.split("## A <step>")[1]


def test_the_readme_has_the_models_beside_all_others(measured):
    jax = MODEL | {"theirs": "hand-written JAX", "ratio": 0.9}
    folder = measured([MODEL, jax, MODEL | {"ours": "eager", "mode": "eager", "ratio": 2.0}, STEP])
    text = (folder / "README.md").read_text()
    heads = ("recorded / PyTorch eager", "eager / PyTorch eager", "recorded / hand-written JAX")
    assert f"| | {' | '.join(heads)} |" in text
    assert "| A model | 0.70 | 2.00 | 0.90 |\n" in text
    assert "A <step>" not in text and "2030-01-02" in text
    drawn = texts(folder / "docs/speed.svg")
    assert "2.00" in drawn and "A model" in drawn and "0.90" not in drawn


@pytest.mark.parametrize("name", ["load", "load_after"])
def test_a_busy_machine_gets_no_page(measured, name):
    folder = measured([])
    before = {made: (folder / made).read_text() for made in (*MADE, RESULTS)}
    complaint = measured([STEP | {"conditions": QUIET | {name: 2.5}}], code=1)
    assert "The machine was busy" in complaint and "2.5" in complaint
    assert before == {made: (folder / made).read_text() for made in before}


@pytest.mark.parametrize("name", ["conformance", "performance"])
def test_the_pages_of_today_have_their_pictures(name):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    assert f"]({name}.svg)" in page
    assert len(ET.parse(ROOT / "docs" / f"{name}.svg").getroot()) > 10
