"""One rank is killed in the middle of a step; the steps of the others raise."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

import torch_jax

dist.init_process_group("jax")
chance = random.Random(int(sys.argv[1]))
ends, at, delay = chance.randrange(dist.get_world_size()), chance.randrange(8), chance.random() / 50


def end() -> None:
    """Die a moment later, somewhere in a step."""
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16).to("jax"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(x: torch.Tensor) -> None:
    """One step of training."""
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


if sys.argv[2:] == ["compiled"]:
    step = torch_jax.jit(step)
error = ""
for count in range(20):
    if dist.get_rank() == ends and count == at:
        threading.Thread(target=end).start()
    try:
        step(torch.randn(4, 16).to("jax"))
    except RuntimeError as failure:
        error = str(failure)
        break
print("ended" in error and str(ends) in error)
