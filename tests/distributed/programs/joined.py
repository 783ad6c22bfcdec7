"""Processes join by arguments or by themselves, and print their ranks and a sum.

``python -m tests.distributed.programs.joined [HOST:PORT RANK COUNT]``.
"""

from __future__ import annotations

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import torch

import torch_jax

if len(sys.argv) > 1:
    who = torch_jax.initialize(sys.argv[1], int(sys.argv[3]), int(sys.argv[2]))
else:
    who = torch_jax.initialize()
mesh = torch_jax.mesh(data=-1)
x = torch_jax.shard(torch.arange(8.0), mesh, ("data",))
print(who.rank, who.size, mesh.size, x.sum().item(), flush=True)
