"""``python -m tests.upstream CHECKOUT [FILE ...] [options of pytest]``: run, and print a table.

Tests that fail are run on the CPU, too: what fails there is no matter of the device, but, say, of a
checkout that is not of the version of PyTorch that is installed.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.upstream import translated
from tests.upstream.exceptions import LEFT_OUT, MORE_RANKS
from tests.upstream.files import DETAILED, FILES, RANKS, RANKS_LIMIT, anywhere

COLUMNS = ("passed", "failed", "on CPU, too", "other words", "excepted", "skipped")
COLUMNS += (*LEFT_OUT, MORE_RANKS, "compiled", "seconds")


class Place(NamedTuple):
    """Where the tests are, where reports go, and what pytest is given."""

    tests: Path
    reports: Path
    options: list[str]


def main(arguments: list[str]) -> int:
    """The exit status: 1 where a test failed without being an exception, or a file is missing."""
    if not arguments or not (Path(arguments[0]) / "test").is_dir():
        print(f"{__doc__}\nCHECKOUT has PyTorch's folder `test`", file=sys.stderr)
        return 2
    patterns = [argument for argument in arguments[1:] if argument.endswith(".py")] or list(FILES)
    options = [argument for argument in arguments[1:] if argument not in patterns]
    importlib.import_module("tests.conftest")  # the environment that all tests run in
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(arguments[0]).resolve() / "test", Path(folder), options)
        lines = [line for pattern in patterns for line in run_all(place, pattern)]
    print("\n".join(table(lines)))
    return int(any({"failed", "broken", "missing"} & line.keys() for line in lines))


def run_all(place: Place, pattern: str) -> list[dict[str, Any]]:
    """The lines of the files of a pattern; one that says so where the checkout has none."""
    found = sorted(path.relative_to(place.tests).as_posix() for path in place.tests.glob(pattern))
    return [run(place, file) for file in found] or [{"file": pattern, "missing": True}]


def run(place: Place, file: str) -> dict[str, Any]:
    """The line of a file: its counts, and the names of tests that fail on jax alone."""
    line = run_on("jax", place, file)
    failing = line.get("failing", [])
    if not failing:
        return line
    names = {name: anywhere(name, "jax") for name in failing}
    only = place.reports / "only.json"
    only.write_text(json.dumps(list(names.values())))
    cpu = run_on("cpu", place, file, f"--upstream-only={only}")
    also = {anywhere(name, "cpu") for name in cpu.get("failing", [])}
    line["failing"] = [name for name in failing if names[name] not in also]
    line["on CPU, too"] = len(failing) - len(line["failing"])
    line["failed"] -= line["on CPU, too"]
    return {name: value for name, value in line.items() if value or name != "failed"}


def run_on(device: str, place: Place, file: str, *more: str) -> dict[str, Any]:
    """Run one file in a process of its own; what its plugin reports."""
    report = place.reports / "report.json"
    report.unlink(missing_ok=True)
    ranks = file.startswith(RANKS)
    counted = () if ranks else ("-p", "tests.support.ledger", "--ledger-top=5")
    many = ("--upstream-ranks", f"--upstream-limit={RANKS_LIMIT}") if ranks else ()
    plugins = (*counted, "-p", "tests.upstream.plugin", *many)
    names = (
        f"--upstream-file={file}",
        f"--upstream-device={device}",
        f"--upstream-report={report}",
    )
    own = ("--noconftest", "-c", os.devnull, "-q", "--tb=line", "-p", "no:cacheprovider")
    root = str(Path(__file__).parents[2])
    path = (_translated(place, device) if ranks else place.tests) / file
    paths = (root, str(path.parent) if ranks else "", os.environ.get("PYTHONPATH", ""))
    environment = {
        **os.environ,
        **(_RANKS_ENVIRONMENT[device] if ranks else {}),
        **({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if file in DETAILED else {}),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu" if device == "cpu" else "privateuse1",
    }
    command = [sys.executable, "-m", "pytest", *own, *plugins, *names, str(path)]
    command += [*place.options, *more]
    # 5: no test is left of those of the file
    status = subprocess.run(command, cwd=place.tests, env=environment).returncode
    if status not in (0, 1, 5) or not report.exists():
        return {"file": file, "broken": status}
    return json.loads(report.read_text())


# The baseline of many processes is PyTorch without this package.
_RANKS_ENVIRONMENT = {
    "jax": {"UPSTREAM_DEVICE": "jax"},
    "cpu": {"UPSTREAM_DEVICE": "cpu", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
}


def _translated(place: Place, device: str) -> Path:
    """The folder with the tests of many processes, for a device."""
    folder = place.reports / device
    if not folder.exists():
        translated.copy(place.tests, folder, device)
    return folder


def table(lines: list[dict[str, Any]]) -> list[str]:
    """A row for each file, and what there is to do about single tests."""
    rows = [" ".join(f"{name:>8}" for name in COLUMNS) + "  file"]
    for line in lines:
        cells = (f"{line.get(name, 0):>{max(8, len(name))}}" for name in COLUMNS)
        rows.append(" ".join(cells) + f"  {line['file']}")
    for line in lines:
        file = line["file"]
        rows += [f"fails: {file} {name}" for name in line.get("failing", ())]
        rows += [f"passes, and is an exception: {file} {name}" for name in line.get("passing", ())]
        rows += [f"ended early, with {line['broken']}: {file}"] if "broken" in line else []
        rows += [f"is not in the checkout: {file}"] if "missing" in line else []
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
