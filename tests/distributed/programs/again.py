"""A group after a group, of the same processes and of one alone."""

import os
import tempfile

import torch
import torch.distributed as dist

torch.manual_seed(0)  # neither this nor what asks for devices starts JAX
torch.accelerator.set_device_index(0)
tensor = torch.ones(3, device="cpu")
for at in range(2):
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + at)
    dist.init_process_group("cpu:gloo,jax:jax")
    tensor = tensor.to("jax")
    dist.all_reduce(tensor)
    dist.destroy_process_group()
with tempfile.NamedTemporaryFile() as file:
    dist.init_process_group("jax", init_method=f"file://{file.name}.group", rank=0, world_size=1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
print(tensor.tolist())
