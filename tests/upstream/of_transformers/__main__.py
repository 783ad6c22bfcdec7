"""``python tests/upstream/of_transformers PATH [options of pytest]``: models of transformers.

PATH is a checkout of transformers, of which the tests of four models run, or its source package of
PyPI (``pip download --no-deps --no-binary transformers transformers==5.23.0``, unpacked), of which
the common tests run on small models. Each runs on device ``jax`` and on the CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
MODELS = ("gpt2", "llama", "bert", "umt5")
# What cannot pass on jax, and why (tests/upstream/README.md).
EXCEPTIONS = {
    "UMT5Test.test_flex_attention_with_grads": "a position bias of one batch is indexed by others",
}
# What cannot pass where the tests are of a source package.
OF_PACKAGES = {
    "test_can_load_with_global_device_set": "it runs itself in a process, by a checkout's path",
}


def main(arguments: list[str]) -> int:
    """The exit status: 1 where a test fails on jax alone that is no exception."""
    tests = Path(arguments[0] if arguments else "").resolve() / "tests"
    if not (tests / "test_modeling_common.py").is_file():
        print(f"{__doc__}\nthere is no {tests}/test_modeling_common.py", file=sys.stderr)
        return 2
    files = [tests / "models" / name / f"test_modeling_{name}.py" for name in MODELS]
    files = [file for file in files if file.is_file()] or [HERE / "models.py"]
    with tempfile.TemporaryDirectory() as folder:
        found = {d: run(d, tests, files, arguments[1:], Path(folder)) for d in ("cpu", "jax")}
    for device, results in found.items():
        counts = {kind: list(results.values()).count(kind) for kind in sorted({*results.values()})}
        print(device, ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    failed = {
        test
        for test, result in found["jax"].items()
        if result == "failed" and found["cpu"].get(test) != "failed"
    }
    reasons = {test: _reason(test, files == [HERE / "models.py"]) for test in failed}
    for test, reason in sorted(reasons.items()):
        print(f"failed on jax alone: {test}: {reason or 'no exception'}")
    return int(not all(reasons.values()) or not found["jax"])


def _reason(test: str, of_package: bool) -> str:
    """Why a test may fail; nothing where it may not."""
    by_name = OF_PACKAGES.get(test.partition(".")[2], "") if of_package else ""
    return EXCEPTIONS.get(test, by_name)


def run(
    device: str, tests: Path, files: list[Path], options: list[str], folder: Path
) -> dict[str, str]:
    """What became of each test, by its name."""
    report = folder / f"{device}.xml"
    root = tests.parent if files[0].is_relative_to(tests) else HERE
    paths = [str(HERE), str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")]
    told = {
        "TRANSFORMERS_TESTS": str(tests),
        "TRANSFORMERS_TEST_DEVICE": device,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    if device == "jax":
        told["TRANSFORMERS_TEST_DEVICE_SPEC"] = "jax_device.py"
    places = [f"--rootdir={root}", f"--confcutdir={root}", "-c", os.devnull, f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "harness", "-p", "no:cacheprovider"]
    command += [*places, *map(str, files), *options]
    subprocess.run(command, cwd=HERE, env=os.environ | told, check=False)
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    return {_name(case): _result(case) for case in cases}


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"


def _result(case: ElementTree.Element) -> str:
    tags = {child.tag for child in case}
    return "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
