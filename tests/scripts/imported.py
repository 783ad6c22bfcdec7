"""A process that has imported torch alone: its state as JSON; answers may depend on the order."""

import json
import sys

import torch

results = {
    "imported": [name for name in ("jax", "torch_jax.dispatch.ladder") if name in sys.modules]
}
results["first use"] = torch.ones(2, device="jax").tolist()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import torch_jax  # noqa: E402

square = torch_jax.jit(lambda x: x @ x)
square(torch.ones(2, 2, device="jax"))
results["dynamo"] = "torch._dynamo" in sys.modules

before = jax.config.jax_enable_x64
x = torch.arange(3, device="jax") * torch.ones(3, dtype=torch.float64, device="jax")
x.sum().item()
after = jax.config.jax_enable_x64
results["x64"] = [before, after, str(jnp.arange(3).dtype), str(x.dtype)]

torch_jax._name_the_device()
torch_jax._name_the_device()
results["registered twice"] = (torch.ones(2, device="jax") + 1).tolist()
print(json.dumps(results))
