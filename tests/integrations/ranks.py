"""A program for torchrun: Accelerate, the Trainer and Lightning, on the device and on the CPU."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch.distributed as dist

from examples.trainers import with_accelerate, with_lightning, with_transformers

PROGRAMS: dict[str, Any] = {
    "accelerate": with_accelerate.main,
    "transformers": with_transformers.main,
    "lightning": lambda device: with_lightning.main(device, devices=2, strategy="ddp"),
}

found = {}
for device in ("jax", "cpu"):  # the processes join by the device's backend, which takes both
    for name, program in PROGRAMS.items():
        found[f"{name} on {device}"] = program(device)
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(found | {"backend": dist.get_backend(), "world": dist.get_world_size()}, file)
dist.destroy_process_group()
