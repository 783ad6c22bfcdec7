"""Processes as the hosts of one mesh, and addresses other than 127.0.0.1."""

from __future__ import annotations

import socket

import pytest
import torch

import torch_jax
from tests.support import processes, ranks
from torch_jax.distributed import joining

PROGRAMS = "tests.distributed.programs"
NO_TORCHRUN = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def said(ended: list[tuple[int, str]]) -> list[str]:
    """Return the last line of each rank, Gloo's left out, of programs that have ended well."""
    assert all(status == 0 for status, _ in ended), ended
    lines = [text.strip().splitlines() for _, text in ended]
    return [[line for line in some if not line.startswith("[Gloo]")][-1] for some in lines]


@pytest.mark.slow
def test_two_processes_of_two_devices_are_one_mesh():
    assert said(ranks.run("-m", f"{PROGRAMS}.one_mesh", "2", seconds=400)) == ["well", "well"]


@pytest.mark.slow
def test_torchrun_says_who_is_there():
    joined = said(ranks.run("-m", f"{PROGRAMS}.joined"))
    assert joined == ["0 2 4 28.0", "1 2 4 28.0"]


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.2", "name"])
def test_all_is_said(host):
    address = f"{socket.gethostname() if host == 'name' else host}:{ranks.free_port()}"
    joined = ranks.run(
        *("-m", f"{PROGRAMS}.joined", address, "$RANK", "2"), changes=lambda rank: NO_TORCHRUN
    )
    assert said(joined) == ["0 2 4 28.0", "1 2 4 28.0"]


@pytest.mark.slow
def test_slurm_says_who_is_there():
    def of_slurm(rank: int) -> dict[str, str | None]:
        return NO_TORCHRUN | {
            "SLURM_JOB_ID": "77",
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": "0",
            "JAX_COORDINATOR_PORT": str(port),
        }

    port = ranks.free_port()
    joined = ranks.run("-m", f"{PROGRAMS}.joined", changes=of_slurm)
    assert said(joined) == ["0 2 4 28.0", "1 2 4 28.0"]


@pytest.mark.slow
def test_a_process_that_ends_is_an_error_in_the_others():
    (status, text), (killed, _) = ranks.run("-m", f"{PROGRAMS}.one_ends")
    assert killed == -9 and status == 0, text
    assert "RuntimeError True" in text.splitlines(), text


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.2", "name"])
def test_process_groups_meet_at_other_addresses(host):
    address = socket.gethostname() if host == "name" else host
    ended = ranks.run("-m", f"{PROGRAMS}.sums", changes=lambda rank: {"MASTER_ADDR": address})
    assert said(ended) == ["0 3.0", "1 3.0"]


def test_arguments_go_together():
    with pytest.raises(ValueError, match="processes, rank must be given, too"):
        torch_jax.initialize("10.0.0.1:1234")


def test_the_device_must_not_have_been_used_before():
    torch.ones(2, device="jax").sum().item()
    with pytest.raises(RuntimeError, match=r"move torch_jax.initialize\(\) above"):
        torch_jax.initialize("127.0.0.1:1234", 2, 0)


def test_the_address_of_rank_0(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    assert joining._address(torch.distributed.PrefixStore("group", store)) == "127.0.0.1"
    assert socket.inet_aton(joining._address(torch.distributed.HashStore()))
    monkeypatch.setenv("MASTER_ADDR", "there")
    assert joining._address(store) == "there"


def test_nobody_is_found():
    changes = NO_TORCHRUN | {"SLURM_JOB_ID": None}
    code = "import torch_jax; torch_jax.initialize()"
    done = processes.forked("-c", code, **changes)
    assert done.returncode == 1 and "no other processes were found" in done.stderr, done.stderr
