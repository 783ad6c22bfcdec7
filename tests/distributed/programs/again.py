"""A group after a group, of the same processes and of one alone."""

import os
import tempfile

import torch
import torch.distributed as dist

import torch_jax

torch.manual_seed(0)  # neither this nor what asks for devices starts JAX
torch.accelerator.set_device_index(0)
tensor = torch.ones(3, device="cpu")


@torch_jax.jit
def summed(x: torch.Tensor) -> torch.Tensor:
    """A compiled function that outlives the group that it was traced in."""
    dist.all_reduce(x)
    return x * 10


sums = []
for at in range(2):
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + at)
    dist.init_process_group("cpu:gloo,jax:jax")
    tensor = tensor.to("jax")
    dist.all_reduce(tensor)
    sums += [summed(torch.ones(1, device="jax")).item() for _ in range(2)]
    dist.destroy_process_group()
    try:
        summed(torch.ones(1, device="jax"))
    except ValueError as error:
        sums.append("has not been initialized" in str(error))
with tempfile.NamedTemporaryFile() as file:
    dist.init_process_group("jax", init_method=f"file://{file.name}.group", rank=0, world_size=1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
print(tensor.tolist(), sums)
