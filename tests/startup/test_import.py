"""``import torch`` alone gives the device, stays quick, and never breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.support.processes import output, run, script

pytestmark = pytest.mark.xdist_group("import")
USE = "print((torch.ones(2, device='jax') + 1).tolist())"


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    """What one process saw that had imported torch alone."""
    return json.loads(script("imported", new=True))


@pytest.mark.parametrize(
    "imports", ["import torch_jax; import torch", "import torch; import torch_jax"]
)
@pytest.mark.slow
def test_the_device_is_there_in_any_order_of_imports(imports):
    assert output("-c", f"{imports}; {USE}", new=True) == "[2.0, 2.0]"


def test_the_device_is_there_where_torch_alone_is_imported(imported):
    assert imported["first use"] == [1.0, 1.0]


def test_import_torch_imports_neither_jax_nor_the_table(imported):
    assert imported["imported"] == []


@pytest.mark.slow
def test_autoload_can_be_switched_off_and_the_package_imported_by_hand():
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = run("-c", f"import torch; {USE}", **off)
    assert done.returncode != 0
    assert output("-c", f"import torch; import torch_jax; {USE}", new=True, **off) == "[2.0, 2.0]"


@pytest.mark.slow
def test_where_pytorch_has_another_accelerator_programs_import_the_package():
    # a process can train on one accelerator, so CUDA must stay as it is
    code = (
        "import sys, torch\n"
        "torch.cuda.device_count = lambda: 1\n"
        "torch._import_device_backends()\n"
        "assert 'torch_jax' not in sys.modules\n"
        "import torch_jax\n"
        f"{USE}"
    )
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert output("-c", code, new=True, **off) == "[2.0, 2.0]"
    asked = code.replace("not in", "in")
    assert output("-c", asked, new=True, TORCH_JAX_RUN="/tmp", **off) == "[2.0, 2.0]"


def test_registering_twice_does_nothing(imported):
    assert imported["registered twice"] == [2.0, 2.0]


def test_functions_that_were_copied_by_name_before_the_first_use_act():
    assert script("imported_by_name", new=True) == "all act"


def test_a_broken_jax_leaves_torch_working_and_says_so_at_first_use(tmp_path):
    (tmp_path / "jax.py").write_text("raise ImportError('this jax is broken')")
    code = "import torch; print(torch.ones(2).sum().item()); torch.ones(2, device='jax')"
    done = run("-c", code, PYTHONPATH=str(tmp_path))
    assert done.stdout.strip() == "2.0"
    assert "RuntimeError: device 'jax' needs a working jax" in done.stderr
    assert "this jax is broken" in done.stderr


@pytest.mark.slow
def test_a_subprocess_started_by_spawn():
    assert script("first_use_in_a_child", new=True) == "[2.0, 2.0]"


@pytest.mark.slow
def test_threads_may_race_for_the_first_use():
    told = script("first_use_by_threads", new=True)
    assert told == "[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]"


@pytest.mark.slow
def test_loading_a_file_may_be_the_first_use(tmp_path):
    path = str(tmp_path / "x.pt")
    torch.save(torch.ones(2, device="jax"), path)
    assert output("-c", f"import torch; print(torch.load({path!r}))", new=True) == (
        "tensor([1., 1.], device='jax:0')"
    )


@pytest.mark.slow
def test_import_torch_gets_less_than_45_ms_slower():
    # The device's own part of `import torch` timed by itself, as the fastest of several fresh
    # processes: other work on the machine only ever adds to it. Python's compiled files are there,
    # as they are for users, from the first of these processes on.
    code = (
        "import time, torch\n"
        "start = time.process_time()\n"
        "torch._import_device_backends()\n"
        "print(time.process_time() - start, 'torch_jax' in __import__('sys').modules)"
    )
    there = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONDONTWRITEBYTECODE": None}
    runs = [output("-c", code, new=True, **there).split() for _ in range(7)]
    assert {loaded for _, loaded in runs} == {"True"}
    slower = min(float(seconds) for seconds, _ in runs)
    assert slower < 0.045, f"import torch is {slower * 1e3:.0f} ms slower"


def test_the_users_own_x64_setting_is_never_changed(imported):
    assert imported["x64"] == [False, False, "int32", "torch.float64"]


def test_compiling_a_function_imports_no_other_compiler(imported):
    assert imported["dynamo"] is False  # it takes seconds
