"""Processes work on one mesh until one of them is killed; the other prints its error."""

from __future__ import annotations

import os
import signal
import time

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import torch

import torch_jax

rank, _ = torch_jax.initialize()
x = torch_jax.shard(torch.arange(8.0), torch_jax.mesh(data=-1), ("data",))
assert x.sum().item() == 28
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
try:
    while time.monotonic() - start < 90:
        x.sum().item()
    print("nothing was raised")
except RuntimeError as error:
    print(type(error).__name__, time.monotonic() - start < 60)
