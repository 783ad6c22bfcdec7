"""``python -m tests.upstream CHECKOUT [FILE ...] [options of pytest]``: run, and print a table."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.upstream.files import FILES

COLUMNS = ("passed", "failed", "excepted", "skipped", "about another device", "compiled", "seconds")


def main(arguments: list[str]) -> int:
    """The exit status: 1 where a test failed that the table of exceptions does not name."""
    if not arguments or not (Path(arguments[0]) / "test").is_dir():
        print(f"usage: {__doc__}\nCHECKOUT has PyTorch's folder `test`", file=sys.stderr)
        return 2
    tests = Path(arguments[0]).resolve() / "test"
    files = [argument for argument in arguments[1:] if argument.endswith(".py")] or list(FILES)
    options = [argument for argument in arguments[1:] if argument not in files]
    importlib.import_module("tests.conftest")  # the environment that all tests run in
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        broken = [file for file in files if not run(tests, file, options, report)]
        lines = (
            [json.loads(line) for line in report.read_text().splitlines()]
            if report.exists()
            else []
        )
    print("\n".join(table(lines)))
    print(*(f"collected nothing, or ended early: {file}" for file in broken), sep="\n")
    return int(bool(broken) or any(line.get("failed") for line in lines))


def run(tests: Path, file: str, options: list[str], report: Path) -> bool:
    """Run one file in a process of its own; whether pytest came to an end, and ran something."""
    plugins = ("-p", "tests.support.ledger", "-p", "tests.upstream.plugin")
    names = (f"--upstream-file={file}", f"--upstream-report={report}", "--ledger-top=5")
    own = ("--noconftest", "-c", os.devnull, "-q", "--tb=line", "-p", "no:cacheprovider")
    root = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "privateuse1",
    }
    command = [sys.executable, "-m", "pytest", *own, *plugins, *names, str(tests / file), *options]
    return subprocess.run(command, cwd=tests, env=environment).returncode in (0, 1)


def table(lines: list[dict[str, Any]]) -> list[str]:
    """A row for each file, and the tests that pass though the table of exceptions names them.

    >>> line = {"file": "test_nn.py", "passed": 3, "compiled": 5, "seconds": 1}
    >>> print(*table([line]), sep="\\n")
      passed   failed excepted  skipped about another device compiled  seconds  file
           3        0        0        0                    0        5        1  test_nn.py
    """
    rows = [" ".join(f"{name:>8}" for name in COLUMNS) + "  file"]
    for line in lines:
        cells = (f"{line.get(name, 0):>{max(8, len(name))}}" for name in COLUMNS)
        rows.append(" ".join(cells) + f"  {line['file']}")
    rows += [
        f"passes, and is an exception: {name}" for line in lines for name in line.get("passing", ())
    ]
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
