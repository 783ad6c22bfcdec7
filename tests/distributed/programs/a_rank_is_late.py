"""One rank comes after the time-out; the other has raised by then, and its tensor stays."""

from __future__ import annotations

import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("jax", timeout=datetime.timedelta(seconds=3))
tensor = torch.ones(2, device="jax")
dist.all_reduce(tensor)
if dist.get_rank() == 1:
    time.sleep(8)
started = time.monotonic()
errors = []
for _ in range(2):
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        errors.append(str(error))
if dist.get_rank() == 0:
    print(len(errors), 2.5 < time.monotonic() - started < 5, "no result within 3 s" in errors[0])
    time.sleep(10)
    print(tensor.tolist())
