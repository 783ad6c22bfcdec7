"""Scripts for ``torchrun``, written for CUDA, and for any accelerator."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support import ranks
from torch_jax.core import ordinals


@pytest.mark.slow
def test_two_processes_call_devices_by_number():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # torchrun's, in which keys stay
    of_torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(store.port)}
    ended = ranks.run("-m", "tests.distributed.programs.idioms", changes=lambda rank: of_torchrun)
    assert [status for status, _ in ended] == [0, 0], ended


def test_numbers_are_those_of_the_processes_of_a_host(monkeypatch):
    before = ordinals.current()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert torch.accelerator.device_count() == torch.jax.device_count() == 2
    x = torch.ones(2, device="jax:1")
    assert x.device.index == 0 and x.to("jax:1").device == x.device
    torch.accelerator.set_device_index(1)
    assert torch.accelerator.current_device_index() == 1
    torch.accelerator.set_device_index(-1)  # which changes nothing, as in PyTorch
    assert torch.accelerator.current_device_index() == 1
    for call in (lambda: torch.ones(2, device="jax:2"), lambda: torch.jax.set_device(2)):
        with pytest.raises(RuntimeError, match="invalid device ordinal: jax:2; there are jax:0 to"):
            call()
    torch.accelerator.set_device_index(before)
