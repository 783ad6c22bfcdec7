"""JAX as a native device of PyTorch.

``pip install torch_jax`` and every PyTorch program has a device named ``jax``:

>>> import torch
>>> (torch.ones(2, 2, device="jax") + 1).cpu()
tensor([[2., 2.],
        [2., 2.]])

Importing this package (which ``import torch`` does by itself) only names the device. JAX and the
table of operators are imported when the device is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_jax._version import __version__ as __version__

if TYPE_CHECKING:  # the table of contents, as editors and type checkers read it
    from torch_jax import config as config
    from torch_jax import optim as optim
    from torch_jax.capture.audit import VerificationError as VerificationError
    from torch_jax.capture.history import explain as explain
    from torch_jax.capture.jit import jit as jit
    from torch_jax.capture.jit import lower as lower
    from torch_jax.core.errors import OperatorNotFound as OperatorNotFound
    from torch_jax.core.precision import matmul_precision as matmul_precision
    from torch_jax.core.tracers import DataDependentError as DataDependentError
    from torch_jax.core.tracers import NotTraceableError as NotTraceableError
    from torch_jax.device.memory_report import memory_report as memory_report
    from torch_jax.distributed.checkpoint_folders import last_checkpoint as last_checkpoint
    from torch_jax.distributed.hosts import initialize as initialize
    from torch_jax.distributed.mesh import mesh as mesh
    from torch_jax.distributed.orbax import load_orbax as load_orbax
    from torch_jax.distributed.orbax import save_orbax as save_orbax
    from torch_jax.distributed.sharding import shard as shard
    from torch_jax.distributed.sharding import with_sharding_constraint as with_sharding_constraint
    from torch_jax.distributed.spawn import spawn as spawn
    from torch_jax.environment.environment import Environment as Environment
    from torch_jax.environment.environment import default_env as default_env
    from torch_jax.environment.overrides import register_op as register_op
    from torch_jax.exporting.export import export as export
    from torch_jax.graphs.interpreter import JaxInterpreter as JaxInterpreter
    from torch_jax.interop.arrays import from_jax as from_jax
    from torch_jax.interop.arrays import to_jax as to_jax
    from torch_jax.interop.flax_module import nn_from_flax as nn_from_flax
    from torch_jax.interop.from_jax import call_jax as call_jax
    from torch_jax.interop.from_jax import from_jax_function as from_jax_function
    from torch_jax.interop.functional import functional as functional
    from torch_jax.interop.functional import load_functional as load_functional
    from torch_jax.interop.generate_loop import generate_loop as generate_loop
    from torch_jax.interop.nnx_module import nnx_from_torch as nnx_from_torch
    from torch_jax.interop.pallas import pallas_op as pallas_op
    from torch_jax.interop.scan_layers import scan_layers as scan_layers
    from torch_jax.interop.to_jax_function import to_jax_function as to_jax_function
    from torch_jax.loops.checkpoint_policy import checkpoint_name as checkpoint_name
    from torch_jax.loops.checkpoint_policy import checkpoint_policy as checkpoint_policy
    from torch_jax.loops.device_loader import DeviceLoader as DeviceLoader
    from torch_jax.loops.master_weights import MasterWeights as MasterWeights
    from torch_jax.observe.metrics import metrics as metrics
    from torch_jax.observe.metrics import report as report
    from torch_jax.observe.metrics import reset_metrics as reset_metrics
    from torch_jax.observe.placement import is_jax_module as is_jax_module
    from torch_jax.observe.placement import where_is as where_is
    from torch_jax.observe.profiling.profile import profile as profile
    from torch_jax.observe.trace_ops import trace_ops as trace_ops
    from torch_jax.recorded.elsewhere import compile_for as compile_for
    from torch_jax.recorded.lazy import fused as fused
    from torch_jax.recorded.lazy import lazy as lazy
    from torch_jax.recorded.lazy import mark_step as mark_step
    from torch_jax.recorded.lazy import sync as sync


def _name_the_device() -> None:
    """Name the device ``jax``, and never break torch, which may be what imports this package."""
    try:
        from torch_jax.startup import register

        register.register()
    except Exception as error:  # an exception here would make ``import torch`` itself fail
        global _failure
        _failure = error


_failure: Exception | None = None
# the same for Python, which loads a module when one of its names is asked for
_NAMES = {
    "capture.audit": "VerificationError",
    "capture.history": "explain",
    "capture.jit": "jit lower",
    "config": "config",
    "core.errors": "OperatorNotFound",
    "core.precision": "matmul_precision",
    "core.tracers": "DataDependentError NotTraceableError",
    "device.memory_report": "memory_report",
    "distributed.checkpoint_folders": "last_checkpoint",
    "distributed.hosts": "initialize",
    "distributed.mesh": "mesh",
    "distributed.orbax": "load_orbax save_orbax",
    "distributed.sharding": "shard with_sharding_constraint",
    "distributed.spawn": "spawn",
    "environment.environment": "default_env Environment",
    "environment.overrides": "register_op",
    "exporting.export": "export",
    "graphs.interpreter": "JaxInterpreter",
    "interop.arrays": "from_jax to_jax",
    "interop.flax_module": "nn_from_flax",
    "interop.from_jax": "call_jax from_jax_function",
    "interop.functional": "functional load_functional",
    "interop.generate_loop": "generate_loop",
    "interop.nnx_module": "nnx_from_torch",
    "interop.pallas": "pallas_op",
    "interop.scan_layers": "scan_layers",
    "interop.to_jax_function": "to_jax_function",
    "loops.checkpoint_policy": "checkpoint_name checkpoint_policy",
    "loops.device_loader": "DeviceLoader",
    "loops.master_weights": "MasterWeights",
    "observe.metrics": "metrics report reset_metrics",
    "observe.placement": "is_jax_module where_is",
    "observe.profiling.profile": "profile",
    "observe.trace_ops": "trace_ops",
    "optim": "optim",
    "recorded.elsewhere": "compile_for",
    "recorded.lazy": "fused lazy mark_step sync",
}
_LAZY = {name: module for module, names in _NAMES.items() for name in names.split()}

import torch  # noqa: E402, F401, which imports this package too: see torch_jax_autoload

_name_the_device()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'torch_jax' has no attribute {name!r}")
    if _failure is not None:
        raise RuntimeError(f"torch_jax could not register its device: {_failure}") from _failure
    import importlib

    module = importlib.import_module(f"torch_jax.{_LAZY[name]}")
    return module if _LAZY[name] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
