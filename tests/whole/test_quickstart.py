"""The programs of examples/quickstart run, and print the right lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("quickstart")
FOLDER = next(
    parent / "examples" / "quickstart"
    for parent in Path(__file__).parents
    if (parent / "examples").is_dir()
)
# One process runs all of them, to import torch and JAX once. eager.py comes first: it has to work
# where nothing was imported.
NAMES = ("eager", "jit_step", "compile", "override", "export")
RUN = """
import contextlib, io, json, runpy, sys
printed = {}
for path in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as file:
        runpy.run_path(path, run_name="__main__")
    printed[path.rsplit("/", 1)[-1].removesuffix(".py")] = file.getvalue()
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each program prints."""
    paths = [(FOLDER / f"{name}.py").as_posix() for name in NAMES]
    command = [sys.executable, "-c", RUN, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def losses(text: str) -> list[float]:
    """The losses that a program printed, first to last."""
    return [float(number) for number in re.findall(r"loss (\d+\.\d+)", text)]


@pytest.mark.slow
def test_the_ways_to_run_learn_and_agree(printed):
    eager, compiled, step = (losses(printed[name]) for name in ("eager", "compile", "jit_step"))
    assert eager[0] > 1 and eager[-1] < 0.05 and len(eager) == 3
    assert compiled == pytest.approx(eager, abs=5e-4)
    assert step[0] == pytest.approx(eager[0], abs=5e-4) and step[-1] < 0.05
    assert "differ by less than 1e-6: True" in printed["compile"]
    assert "[3.0, 3.0] jax:0" in printed["eager"]


@pytest.mark.slow
def test_the_step_is_observed_once_and_its_schedule_runs(printed):
    assert re.search(r"^ *1 calls were observed", printed["jit_step"], re.MULTILINE)
    assert "Python runs at each call" not in printed["jit_step"]
    assert re.findall(r"rate (\S+)", printed["jit_step"]) == ["0.0100", "0.0049", "0.0000"]


@pytest.mark.slow
def test_an_override_holds_for_its_region(printed):
    lines = printed["override"].splitlines()
    assert lines[0] == "PyTorch's: [0.0, 2.0]"
    assert lines[1].startswith("ours: [-0.1, 2.0] <override of aten.relu.default")
    assert lines[2:] == ["PyTorch's again: [0.0, 2.0]", "gradient of the cube: [3.0, 12.0]"]


@pytest.mark.slow
def test_a_file_gives_what_the_model_gives(printed):
    assert "0.weight (8, 2)" in printed["export"]
    assert "a jax.Array: True, equal to the model's result: True" in printed["export"]


def test_each_program_is_short_and_listed():
    readme = (FOLDER / "README.md").read_text()
    paths = list(FOLDER.glob("*.py"))
    assert {path.stem for path in paths} == set(NAMES)
    for path in paths:
        assert len(path.read_text().splitlines()) < 40
        assert f"[`{path.name}`]({path.name})" in readme
