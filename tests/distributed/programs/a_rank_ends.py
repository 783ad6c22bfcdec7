"""One rank is killed; the others print the errors of their next collectives, and end normally."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

dist.init_process_group("jax")
tensor = torch.ones(1000, device="jax")
dist.all_reduce(tensor)
ends = int(sys.argv[1])
if dist.get_rank() == ends:
    os.kill(os.getpid(), signal.SIGKILL)


def raised(function: Callable[[], Any]) -> str:
    """The type and the text of an error."""
    try:
        function()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


print(raised(lambda: dist.all_reduce(tensor)))
print(raised(lambda: dist.recv(torch.ones(2, device="jax"), ends)))
print(raised(dist.barrier))
print((tensor + 1).sum().item() > 0)
dist.destroy_process_group()
