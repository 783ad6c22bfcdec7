"""The device is used before the process group is made."""

import torch
import torch.distributed as dist

torch.ones(2, device="jax")
dist.init_process_group("jax")
