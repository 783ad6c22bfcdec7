"""The wheel, made of the sdist, works in an environment without this project; files about it."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import torch_jax
from tests.support.processes import ROOT, environment

pytestmark = pytest.mark.xdist_group("packaging")
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "demo_output")
USED = """
import importlib.metadata, runpy, sys, torch
assert "torch_jax" in sys.modules  # nobody has imported it but torch
import torch_jax
assert torch_jax.__file__.startswith(sys.prefix), torch_jax.__file__
assert importlib.metadata.version("torch_jax") == torch_jax.__version__
names = [point.name for point in importlib.metadata.entry_points(group="torch_dynamo_backends")]
assert names.count("jax") == 1, names
print((torch.ones(3, device="jax") + 1).tolist())
sys.argv = ["torch_jax", "doctor"]
runpy.run_module("torch_jax", run_name="__main__")
"""


def run(command: list[Any], folder: Path) -> str:
    """What a command prints that is started elsewhere, without the variables of this process."""
    variables = environment({"PYTHONPATH": None, "VIRTUAL_ENV": None})
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with an sdist, and with the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "source", ignore=LEFT_OUT)
    # the backend is installed with torch: an environment for it alone would be fetched each time
    run([sys.executable, "-m", "build", "--no-isolation", "-o", folder], folder / "source")
    return folder


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = {path for path in (ROOT / "torch_jax").rglob("*") if path.suffix != ".pyc"}
    files = {path.relative_to(ROOT).as_posix() for path in package if path.is_file()}
    assert names == files | {"torch_jax_autoload.py"} and "torch_jax/py.typed" in names


@pytest.mark.slow
def test_what_the_wheel_says_of_itself(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        said = email.message_from_bytes(archive.read(metadata))
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload().startswith("# torch_jax")
    assert {"cuda", "tpu"} <= set(said.get_all("Provides-Extra"))
    needed = [need for need in said.get_all("Requires-Dist") if "extra" not in need]
    assert sorted(re.split(r"\W", need)[0] for need in needed) == ["jax", "numpy", "torch"]


@pytest.mark.slow
def test_the_sdist_has_what_its_tests_need(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/whole/test_packaging.py", "docs/index.md", "Makefile", "mkdocs.yml"} <= names
    assert not [name for name in names if name.endswith(".pyc") or ".venv" in name]


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(built, tmp_path):
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(
        run([python, "-c", "import sysconfig as s; print(s.get_path('purelib'))"], tmp_path).strip()
    )
    # torch and jax of this environment; its own .pth files, as those of an editable install, are
    # read only where it is the environment itself
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    run([*pip, "--ignore-installed", "--no-index", wheel], tmp_path)
    said = run([python, "-c", USED], tmp_path)
    assert said.startswith("[2.0, 2.0, 2.0]\n") and "nothing is wrong" in said


def read(name: str) -> Any:
    """A file of YAML."""
    return yaml.safe_load((ROOT / name).read_text())


def test_workflows_run_targets_that_there_are():
    makefile = (ROOT / "Makefile").read_text()
    targets = set()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in read(path.relative_to(ROOT).as_posix())["jobs"].values():
            lines = [step.get("run", "") for step in job["steps"]]
            targets |= set(re.findall(r"^make ([\w-]+)", "\n".join(lines), re.MULTILINE))
    assert targets >= {"test", "site", "conformance"}
    assert [name for name in targets if f"\n{name}: " not in makefile] == []


def test_the_nightly_releases_begin_with_the_oldest_and_have_the_one_of_every_day():
    matrix = read(".github/workflows/nightly.yml")["jobs"]["releases"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = dict(need.split(">=") for need in project["dependencies"] if ">=" in need)
    for name in ("torch", "jax"):
        assert matrix[name][0].startswith(f"{oldest[name]}.")
    (daily,) = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert daily in matrix["torch"]


def test_forms_ask_for_what_the_doctor_says():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        fields = {field["id"]: field for field in read(f"{path}").get("body", [])}
        assert not fields or fields["doctor"]["validations"]["required"]


def test_the_citation_is_of_this_version():
    assert read("CITATION.cff")["version"] == torch_jax.__version__
