"""One rank is killed in the middle of a step; the backward passes of the others raise."""

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

dist.init_process_group("jax")
chance = random.Random(int(sys.argv[1]))
ends, at, delay = chance.randrange(dist.get_world_size()), chance.randrange(8), chance.random() / 50


def end() -> None:
    """Die a moment later, somewhere in a step."""
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16).to("jax"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
error = ""
for step in range(20):
    if dist.get_rank() == ends and step == at:
        threading.Thread(target=end).start()
    try:
        model(torch.randn(4, 16).to("jax")).sum().backward()
    except RuntimeError as failure:
        error = str(failure)
        break
    optimizer.step()
    optimizer.zero_grad()
print("ended" in error and str(ends) in error)
