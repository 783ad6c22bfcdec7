"""The runner of PyTorch's own tests, on a checkout of one small file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.upstream import __main__ as upstream
from tests.upstream.__main__ import table
from tests.upstream.exceptions import EXCEPTIONS, left_out, reason
from tests.upstream.files import FILES, anywhere
from tests.upstream.translated import translated

SMALL = """
import torch
from torch.testing._internal.common_device_type import (
    dtypes, instantiate_device_type_tests, onlyCPU, onlyCUDA
)
from torch.testing._internal.common_utils import TestCase, run_tests


class TestSmall(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_adds(self, device, dtype):
        x = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual(x + x, torch.full((3,), 2, device=device, dtype=dtype))

    @onlyCPU
    def test_runs_though_it_is_restricted(self, device):
        self.assertEqual(torch.zeros(2, device=device).device.type, torch.device(device).type)

    @onlyCUDA
    def test_is_about_another_device(self, device):
        torch.cuda.synchronize()

    def test_fails_anywhere(self, device):
        self.assertEqual(torch.ones(1, device=device), torch.zeros(1, device=device))

    def test_fails_here(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    def test_has_other_words(self, device):
        with self.assertRaisesRegex(RuntimeError, f"words of {device}"):
            raise RuntimeError("words")

    def test_takes_too_long(self, device):
        while torch.device(device).type == "jax":
            pass


class TestNoDevice(TestCase):
    def test_takes_no_device(self):
        raise AssertionError


instantiate_device_type_tests(TestSmall, globals())

if __name__ == "__main__":
    run_tests()
"""

RANKS = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.common_distributed import MultiThreadedTestCase, skip_if_lt_x_gpu
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms


class TestProcesses(DTensorTestBase):
    @with_comms
    def test_adds(self):
        total = torch.ones(2, device="cuda") * self.rank
        dist.all_reduce(total)
        self.assertEqual(total, torch.ones(2, device=torch.device("cuda", self.rank)))

    @with_comms
    @skip_if_lt_x_gpu(2)
    def test_gathers(self):
        tensor = torch.arange(4).cuda()
        parts = distribute_tensor(tensor, self.build_device_mesh(), [Shard(0)])
        self.assertEqual(parts.to_local().numel(), 2)
        self.assertEqual(parts.full_tensor(), tensor)

    @with_comms
    def test_fails_here(self):
        self.assertEqual(dist.get_backend(), "gloo")

    @with_comms
    def test_fails_anywhere(self):
        self.assertEqual(self.rank, 0)


class TestMany(DTensorTestBase):
    world_size = 8

    @with_comms
    def test_has_more_ranks(self):
        raise AssertionError


class TestThreads(MultiThreadedTestCase):
    world_size = 4

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_adds(self):
        total = torch.ones(2, device="cuda")
        dist.all_reduce(total)
        self.assertEqual(total, torch.full((2,), 4.0, device="cuda"))


if __name__ == "__main__":
    run_tests()
"""


def run(checkout: Path, file: str, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = checkout / "test" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    command = [sys.executable, "-m", "tests.upstream", str(checkout), file, *options]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)


@pytest.mark.slow
def test_a_checkout(tmp_path):
    done = run(tmp_path, "test_small.py", SMALL, "--upstream-limit=10")
    assert done.returncode == 1, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.endswith("  test_small.py"))
    # passed, failed, on CPU, too, other words, excepted, skipped, other device
    assert row.split()[:7] == ["3", "2", "1", "1", "0", "0", "1"], done.stdout
    assert "fails: test_small.py test_fails_here_jax" in done.stdout
    assert "fails: test_small.py test_takes_too_long_jax" in done.stdout
    assert "took more than 10 s" in done.stdout


@pytest.mark.slow
def test_many_processes(tmp_path):
    done = run(tmp_path, "distributed/test_ranks.py", RANKS)
    assert done.returncode == 1, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.endswith("/test_ranks.py"))
    # passed, failed, on CPU, too, other words, excepted, skipped, four rules, more ranks
    counts = ["3", "1", "1", "0", "0", "0", "0", "0", "0", "0", "1"]
    assert row.split()[:11] == counts, done.stdout
    assert "fails: distributed/test_ranks.py test_fails_here" in done.stdout


def test_files_that_a_checkout_lacks_are_named(tmp_path, monkeypatch, capsys):
    here = tmp_path / "test" / "distributed" / "tensor" / "test_api.py"
    here.parent.mkdir(parents=True)
    here.touch()
    monkeypatch.setattr(upstream, "run", lambda place, file: {"file": file, "passed": 1})
    assert upstream.main([str(tmp_path), "distributed/*tensor/test_api.py"]) == 0
    assert capsys.readouterr().out.endswith("  distributed/tensor/test_api.py\n")
    assert upstream.main([str(tmp_path)]) == 1
    rows = capsys.readouterr().out.splitlines()
    lacking = [row.partition(": ")[2] for row in rows if row.startswith("is not in the checkout: ")]
    assert lacking == [pattern for pattern in FILES if pattern != "distributed/*tensor/test_api.py"]


def test_other_devices_are_translated():
    text = """
from __future__ import annotations
x = torch.zeros(2, device="cuda").cuda(self.rank % torch.cuda.device_count())
a, b = torch.device(f"cuda:{self.rank}"), torch.device("cuda", self.rank)
dist.init_process_group("nccl" if c10d.is_nccl_available() else dist.Backend.NCCL)
y = torch.ones(2, device=f"{self.device_type}:{self.rank}")
z = DDP(model.to(torch.device(self.rank)), device_ids=[self.rank])
"""
    assert (
        translated(text, "jax")
        == """
from __future__ import annotations
import tests.upstream.ranks  # which device, how many of them
x = torch.zeros(2, device="jax").to("jax")
a, b = torch.device("jax:0"), torch.device("jax:0")
dist.init_process_group("jax" if True else "jax")
y = torch.ones(2, device=self.device_type)
z = DDP(model.to(torch.device("jax:0")), device_ids=["jax:0"])
"""
    )
    assert 'torch.device("cpu"), torch.device("cpu")' in translated(text, "cpu")
    assert '"gloo" if' in translated(text, "cpu")
    assert "device_ids=None" in translated(text, "cpu")


def test_a_table():
    lines = [
        {"file": "a.py", "passed": 3, "failed": 1, "failing": ["test_x_jax"]},
        {"file": "b.py", "broken": 4},
        {"file": "c.py", "passed": 1, "passing": ["test_y_jax"]},
    ]
    _, *rows = table(lines)
    assert [row.split()[0] for row in rows[:3]] == ["3", "0", "1"]
    assert rows[3:] == [
        "fails: a.py test_x_jax",
        "ended early, with 4: b.py",
        "passes, and is an exception: c.py test_y_jax",
    ]


def test_names_and_exceptions():
    assert anywhere("test_sum_jax_float32", "jax") == anywhere("test_sum_cpu_float32", "cpu")
    assert anywhere("test_jaxpr_jax", "jax") == "test_jaxpr_*"
    assert reason("test_any.py", "test_view_as_real_jax_complex32")
    assert not reason("test_any.py", "test_view_as_real_jax_complex64")
    for folder in ("tensor", "_tensor"):
        assert reason(f"distributed/{folder}/test_matrix_ops.py", "test_dtensor_mm")
    assert left_out("x.cuda()") == "other device" and not left_out("device=device")
    for lines in EXCEPTIONS.values():
        assert all(line.split()[0] in (*FILES, "*") for line in lines)
