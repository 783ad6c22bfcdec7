"""``torch_jax.profile`` and ``python -m torch_jax profile``: where the time of a program goes."""

from __future__ import annotations

import json
import time

import pytest
import torch

import torch_jax
from tests.support.steps import mlp, step_of
from torch_jax.observe import cli
from torch_jax.observe.profiling import samples
from torch_jax.observe.profiling.profile import Profile

HERE = "tests/observe/test_profiling.py"


def slow_python() -> None:
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        pass


@pytest.mark.slow
def test_a_compiled_step_is_told_by_kernels_and_lines():
    model = mlp()
    step = torch_jax.jit(step_of(model, torch.optim.SGD(model.parameters(), lr=0.1)), pure=True)
    x = torch.ones(5, 4, device="jax")  # a size of its own: programs on disk have others' lines
    for _ in range(4):  # of which two are audited
        step(x)
    found = torch_jax.profile(step, x, calls=3, warm_up=0)
    assert (found.calls, found.compiles) == (3, 0)
    assert 0 < found.busy <= found.seconds
    assert 0 <= found.moves <= sum(kernel.seconds for kernel in found.kernels)
    operators = {kernel.operator for kernel in found.kernels}
    assert any(name.startswith("aten::") for name in operators), operators
    assert any("tests/support/steps.py" in kernel.line for kernel in found.lines)
    page = str(found)
    assert "3 calls" in page and "the device was busy" in page and "aten::" in page


@pytest.mark.parametrize("name", ["mm", "linear"])
def test_a_kernel_is_of_the_program_that_ran_and_not_of_one_alike(name):
    x = torch.ones(72, 72, device="jax")
    alike = {"mm": torch.mm, "linear": torch.nn.functional.linear}
    steps = {one: torch_jax.jit(function, pure=True) for one, function in alike.items()}
    for step in steps.values():
        for _ in range(4):
            step(x, x)
    kernels = torch_jax.profile(steps[name], x, x, calls=3).kernels
    found = [(one.operator, one.times) for one in kernels if one.operator.startswith("aten::")]
    assert found == [(f"aten::{name}", 3)]


@pytest.mark.slow
def test_lines_of_python_are_found_where_it_is_slow():
    found = torch_jax.profile(slow_python, calls=5, warm_up=0)
    (file, _, function), looks = next(iter(found.python_lines.items()))
    assert file.endswith(HERE) and function == "slow_python" and looks > 3
    assert found.parts["Python, yours"] > 0.8 * found.seconds
    assert "slow_python" in str(found)


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (["torch_jax/memory/transfer.py", "torch_jax/capture/replay.py"], "looking at values"),
        (["torch_jax/capture/guards.py", "torch_jax/capture/jit.py"], "guards of jit"),
        (["jax/_src/compiler.py", "torch_jax/eager/kernel.py"], "compiling"),
        (["jax/_src/pjit.py", "torch_jax/eager/kernel.py"], "tracing"),
        (["torch_jax/eager/kernel.py", "torch/_tensor.py"], "operators, eager"),
        (["torch/nn/modules/module.py"], "PyTorch"),
        (["train.py"], "Python, yours"),
    ],
)
def test_parts_of_the_work(files, part):
    folders = {"torch_jax": samples._TORCH_JAX, "torch": samples._TORCH, "jax": samples._JAX}
    paths = [folders.get(first, "/") + rest for first, _, rest in (f.partition("/") for f in files)]
    assert samples.part_of([*paths, "train.py"]) == part


@pytest.mark.usefixtures("eager_by_xla")
@pytest.mark.slow
def test_a_script_is_profiled_and_its_status_kept(tmp_path, capfd):
    script, report = tmp_path / "script.py", tmp_path / "report.json"
    script.write_text(
        "import sys, torch\n"
        "x = torch.ones(64, 64, device='jax')\n"
        "print((x @ x).sum().item())\n"
        "sys.exit(3)\n"
    )
    assert cli.main(["profile", "--report", str(report), str(script)]) == 3
    printed = capfd.readouterr()
    assert "262144.0" in printed.out and "Kernels of XLA" in printed.err
    found = json.loads(report.read_text())
    assert any(kernel["operator"] == "aten::mm" for kernel in found["kernels"])
    assert found["busy"] > 0 and found["calls"] == 1


def test_there_is_nothing_to_look_at_in_no_call():
    with pytest.raises(ValueError, match="at least one call"):
        torch_jax.profile(slow_python, calls=0)


def test_a_page_of_a_script_speaks_of_no_calls():
    numbers = {"seconds": 2.0, "busy": 1.0, "parts": {"compiling": 1.0}, "compiles": 3, "loaded": 1}
    none = {"kernels": [], "lines": [], "moves": 0.0, "python_lines": {}}
    of_script = str(Profile("train.py", 1, **numbers, **none, is_script=True))
    assert "1.00 s of the whole script, 50% of the time" in of_script
    assert "call" not in of_script and "warm_up" not in of_script
    assert "warm_up=" in str(Profile("step", 10, **numbers, **none))
