"""Which module of a bridge is which file of this folder, and what is not carried over.

A name that a bridge has publicly and this package has no equal of stands in :data:`NOT_CARRIED`
with what to use instead: nothing of a bridge is missing without a word.
"""

from __future__ import annotations

MODULES: dict[str, str] = {
    "torch_xla": "torch_xla",
    "torch_xla.core.xla_model": "xla.xla_model",
    "torch_xla.debug.metrics": "xla.metrics",
    "torch_xla.distributed.parallel_loader": "xla.parallel_loader",
    "torch_xla.distributed.xla_backend": "xla.xla_backend",
    "torch_xla.distributed.xla_multiprocessing": "xla.xla_multiprocessing",
    "torch_xla.runtime": "xla.runtime",
    "torch_xla.utils.utils": "xla.utils",
    "torchax": "torchax",
    "torchax.amp": "ax.amp",
    "torchax.checkpoint": "ax.checkpoint",
    "torchax.config": "ax.configuration",
    "torchax.export": "ax.export",
    "torchax.flax": "ax.flax",
    "torchax.interop": "ax.interop",
    "torchax.mesh_util": "ax.mesh_util",
    "torchax.ops.jaten": "ax.jaten",
    "torchax.ops.jlibrary": "ax.jlibrary",
    "torchax.ops.jtorch": "ax.jtorch",
    "torchax.ops.mappings": "ax.mappings",
    "torchax.ops.ops_registry": "ax.ops_registry",
    "torchax.tensor": "ax.tensor",
    "torchax.train": "ax.train",
    "torchax.types": "ax.types",
    "torchax.util": "ax.util",
}

_TABLE = "the table of operators is torch_jax's own"

NOT_CARRIED: dict[str, str] = {
    "torchax.decompositions": "PyTorch's own decompositions serve; `python -m torch_jax ops NAME` "
    "tells what an operator ends in",
    "torchax.device_module": "torch.jax is the module of the device",
    "torchax.ops.jax_reimplement": f"{_TABLE}; an operator is replaced by "
    "torch_jax.default_env().override",
    "torchax.ops.jc10d": "torch.distributed runs on the backend 'jax' (docs/distributed.md)",
    "torchax.ops.jimage": f"{_TABLE}; an operator is replaced by torch_jax.default_env().override",
    "torchax.ops.jtorchvision_nms": "torchvision's own operator runs on the CPU",
    "torchax.ops.op_base": "in-place and out= variants are derived from the functional operator "
    "by its schema",
    "torchax.tensor.View": "views are PyTorch's own, with shared storage",
    "torchax.tensor.XLADispatchMode": "tensors of device 'jax' need no mode",
    "torchax.tensor.XLAFunctionMode": "tensors of device 'jax' need no mode",
    "torchax.view": "views are PyTorch's own, with shared storage",
}
