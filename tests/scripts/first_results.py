"""The cost of a process's first results, as JSON; each answer may depend on the order."""

import json
import sys

import torch

results = {"result": (torch.ones(3, device="jax") + 1).tolist()}
results["lowered"] = [name for name in sys.modules if name.startswith("jaxlib.mlir.dialects._mhlo")]

x = torch.randn(4, 8, device="jax", requires_grad=True)
layer = torch.nn.Linear(8, 2, device="jax")
torch.nn.functional.gelu(torch.nn.functional.layer_norm(layer(x), (2,))).sum().backward()
torch.multinomial(torch.rand(8, device="jax") + torch.randint(1, 3, (8,), device="jax"), 2)
heavy = ("torch._dynamo", "sympy", "jax.experimental.pallas", "jax.extend", "scipy", "optax")
results["imported"] = [name for name in heavy if name in sys.modules]

from torch_jax.dispatch import ladder  # noqa: E402

results["kernels"] = len(ladder.KERNELS_BY_OP)
print(json.dumps(results))
