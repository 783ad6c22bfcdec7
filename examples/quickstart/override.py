"""A JAX function of your own in place of an operator or of a function of PyTorch's."""

import jax.numpy as jnp
import torch

import torch_jax

env = torch_jax.default_env()
x = torch.tensor([-1.0, 2.0], device="jax", requires_grad=True)


def leaky(x):
    """What ``aten::relu`` is while the override holds, on ``jax.Array``s."""
    return jnp.where(x > 0, x, x * 0.1)


print("PyTorch's:", torch.relu(x).tolist())
with env.override("aten::relu", leaky) as override:
    print("ours:", [round(value, 4) for value in torch.relu(x).tolist()], override)
print("PyTorch's again:", torch.relu(x).tolist())


def cube(x):
    """In place of a Python function: the gradient is JAX's own."""
    return x**3


with env.override(torch.nn.functional.gelu, cube, takes="jax"):
    torch.nn.functional.gelu(x).sum().backward()
print("gradient of the cube:", x.grad.tolist())
