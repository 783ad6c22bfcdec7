"""The cost of a process's first results, as JSON; each answer may depend on the order."""

import json
import sys

import torch

results = {"result": (torch.ones(3, device="jax") + 1).tolist()}
results["lowered"] = [name for name in sys.modules if name.startswith("jaxlib.mlir.dialects._mhlo")]

x = torch.randn(4, 8, device="jax", requires_grad=True)
layer = torch.nn.Linear(8, 2, device="jax")
torch.nn.functional.gelu(torch.nn.functional.layer_norm(layer(x), (2,))).sum().backward()
heavy = ("sympy", "torch._dynamo", "jax.experimental.pallas", "jax.extend", "scipy", "optax")
results["imported"] = [name for name in heavy if name in sys.modules]

from torch_jax.dispatch import ladder  # noqa: E402

results["kernels"] = len(ladder.KERNELS_BY_OP)

SHAPES = "torch.fx.experimental.symbolic_shapes"
results["before"] = type(sys.modules[SHAPES]).__name__
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

sizes = []
make_fx(lambda t: sizes.append(t.numel()) or t + 1, tracing_mode="symbolic")(torch.ones(3, 4))
results["symbolic"] = "3*s" if "*" in str(sizes[0]) else str(sizes[0])
results["after"] = type(sys.modules[SHAPES]).__name__
results["one module"] = torch.fx.experimental.symbolic_shapes is sys.modules[SHAPES]
print(json.dumps(results))
