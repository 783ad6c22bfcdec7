"""Two processes of torchrun: each library has a device in each, and the losses of the CPU."""

from __future__ import annotations

import json

import pytest

from tests.support import processes

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")


@pytest.mark.slow
def test_two_processes_learn_as_on_the_cpu(tmp_path):
    file = tmp_path / "found.json"
    done = processes.forked(*TORCHRUN, "tests.integrations.ranks", str(file))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(file.read_text())
    assert found.pop("world") == 2 and "jax" in found.pop("backend")
    for name in ("accelerate", "transformers", "lightning"):
        assert found[f"{name} on jax"] == pytest.approx(found[f"{name} on cpu"], rel=1e-3), name
