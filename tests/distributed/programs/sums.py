"""Every rank adds one to its number, and prints the sum over the ranks."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group(device_id=torch.device("jax:0"))
tensor = torch.tensor(float(dist.get_rank() + 1), device="jax")
dist.all_reduce(tensor)
sys.stderr.write(f"{dist.get_rank()} {tensor.item()}\n")  # into stdout Gloo writes, piece by piece
dist.destroy_process_group()
