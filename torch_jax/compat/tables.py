"""The files of each module of a bridge, and the names that are not carried over.

A public name of a bridge without an equal in this package is listed in :data:`NOT_CARRIED` with a
replacement: no name of a bridge is missing without an explanation.
"""

from __future__ import annotations

# For each file of this folder the modules of a bridge that have its public names.
_XLA = {
    "debug": "debug.metrics debug.profiler",
    "experimental": "experimental experimental.eager",
    "fsdp": "distributed.fsdp distributed.fsdp.wrap experimental.spmd_fully_sharded_data_parallel",
    "functions": "core.functions",
    "parallel_loader": "distributed.parallel_loader",
    "precision": "amp amp.syncfree backends",
    "programs": "core.xla_builder experimental.assume_pure experimental.custom_kernel "
    "experimental.scan experimental.scan_layers",
    "runtime": "runtime",
    "spmd": "distributed.spmd distributed.spmd.debugging distributed.spmd.xla_sharding "
    "experimental.xla_sharding",
    "stablehlo": "stablehlo",
    "utils": "experimental.distributed_checkpoint test.test_utils utils.checkpoint "
    "utils.serialization utils.utils",
    "world": "distributed.xla_backend distributed.xla_multiprocessing",
    "xla_model": "core.xla_model",
}
_AX = {
    "environment": "amp config tensor",
    "export": "export",
    "flax": "checkpoint flax",
    "interop": "interop",
    "mesh_util": "mesh_util",
    "operators": "ops.jaten ops.jlibrary ops.jtorch ops.ops_registry",
    "train": "train",
    "values": "ops.mappings types util",
}
MODULES = {"torch_xla": "torch_xla", "torchax": "torchax"}
for _bridge, _folder, _files in ("torch_xla", "xla", _XLA), ("torchax", "ax", _AX):
    for _file, _modules in _files.items():
        for _module in _modules.split():
            MODULES[f"{_bridge}.{_module}"] = f"{_folder}.{_file}"
            MODULES.setdefault(f"{_bridge}.{_module}".rpartition(".")[0], "")  # which holds others

_LOWEST = "operators are written in JAX (torch_jax.call_jax, torch_jax.register_op)"
_ATTENTION = "F.scaled_dot_product_attention and flex_attention are there (docs/attention.md)"
_CHECKPOINTS = "torch.distributed.checkpoint reads tensors written by any number of processes"
_SHARD = "torch_jax.shard is for a mesh, and torch.distributed.tensor's functions for processes"
_PROCESSES = "torchrun, or torch_jax.initialize, starts many processes (docs/distributed.md)"

# The last part of a name may be *, for all that a module lacks.
NOT_CARRIED: dict[str, str] = {
    "torch_xla.*": "docs/migrate.md lists those that are. A library that looks for "
    "torch_xla by itself works better without: torch_jax.compat.install('torchax') omits it",
    "torch_xla._XLAC": "it is PyTorch/XLA's own library; torch_jax.trace_ops, torch_jax.lower and "
    "torch_jax.explain show programs",
    "torch_xla._dynamo": "torch.compile(backend='jax') is used instead (docs/compile.md)",
    "torch_xla._internal": "it is PyTorch/XLA's own",
    "torch_xla.core.functions.nms": "torchvision.ops.nms runs on the device",
    "torch_xla.core.dynamo_bridge": "torch.compile(backend='jax') is used instead",
    "torch_xla.core.xla_builder.*": _LOWEST,
    "torch_xla.core.xla_env_vars": "settings are torch_jax.config's (docs/settings.md)",
    "torch_xla.core.xla_op_registry": _LOWEST,
    "torch_xla.debug.metrics_saver": "torch_jax.metrics() is a dict to be saved",
    "torch_xla.debug.model_comparator": "the same model runs on the CPU, to compare with",
    "torch_xla.distributed.cluster": _PROCESSES,
    "torch_xla.distributed.fsdp.consolidate_sharded_model_checkpoints": _CHECKPOINTS,
    "torch_xla.distributed.fsdp.state_dict_utils": _CHECKPOINTS,
    "torch_xla.distributed.spmd.XLAPatchedLinear": "torch.nn.functional.linear flattens nothing",
    "torch_xla.distributed.spmd.XLAShard": "tensor.jax().addressable_shards, of a jax.Array, are "
    "the parts of each device (torch_jax.to_jax)",
    "torch_xla.distributed.spmd.auto_policy": "torch_jax.shard takes rules by names",
    "torch_xla.distributed.spmd.debugging.visualize_sharding": "shardings are objects, not text: "
    "visualize_tensor_sharding shows that of a tensor",
    "torch_xla.distributed.spmd.disable_manual_sharding": "jax.shard_map, in torch_jax.call_jax, "
    "computes with the parts of tensors",
    "torch_xla.distributed.spmd.enable_manual_sharding": "jax.shard_map, in torch_jax.call_jax, "
    "computes with the parts of tensors",
    "torch_xla.distributed.spmd.xla_distribute_module": _SHARD,
    "torch_xla.distributed.spmd.xla_distribute_tensor": _SHARD,
    "torch_xla.distributed.xla_dist": _PROCESSES,
    "torch_xla.experimental.custom_kernel.*": _ATTENTION,
    "torch_xla.experimental.distributed_checkpoint.CheckpointManager": "torch_jax.last_checkpoint "
    "finds the newest whole folder (docs/training-at-size.md)",
    "torch_xla.experimental.distributed_checkpoint.prime_optimizer": "optimizers load their state "
    "without a step before",
    "torch_xla.experimental.gradient_accumulation": "a loop over backward() in a function under "
    "torch_jax.jit is one program",
    "torch_xla.experimental.pjrt": "torch_xla.runtime has its names",
    "torch_xla.experimental.plugins": "JAX finds plug-ins of devices by itself",
    "torch_xla.experimental.splash_attention": _ATTENTION,
    "torch_xla.experimental.torch_dynamo_xla_backend": "torch.compile(backend='jax')",
    "torch_xla.runtime.get_master_ip": _PROCESSES,
    "torch_xla.runtime.get_num_cached_compilation_graph": "torch_jax.metrics() counts programs",
    "torch_xla.tpu": "torch.jax.get_device_properties describes the device",
    "torch_xla.utils.gcsfs": "fsspec, or etils.epath, opens files of cloud storage",
    "torch_xla.utils.utils.*": "it is PyTorch/XLA's own",
    "torchax.*": "docs/migrate.md lists those that are, and replacements of the rest",
    "torchax.decompositions": "PyTorch's own decompositions serve; `python -m torch_jax ops` "
    "--call shows the operators that a call runs",
    "torchax.device_module": "torch.jax is the module of the device",
    "torchax.ops.*": "the table of operators is torch_jax's own; an operator is replaced by "
    "torch_jax.default_env().override",
    "torchax.ops.jc10d": "torch.distributed runs on the backend 'jax' (docs/distributed.md)",
    "torchax.ops.jtorchvision_nms": "torchvision's own operator runs on the device",
    "torchax.ops.op_base": "in-place and out= variants are derived from the functional operator "
    "by its schema",
    "torchax.tensor.View": "views are PyTorch's own, with shared storage",
    "torchax.tensor.XLADispatchMode": "tensors of device 'jax' need no mode",
    "torchax.tensor.XLAFunctionMode": "tensors of device 'jax' need no mode",
    "torchax.view": "views are PyTorch's own, with shared storage",
}
