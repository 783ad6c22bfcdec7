"""``torch.distributed`` and data parallelism: the backend "jax", and programs that stay on the CPU.

A process group without a backend takes that of the accelerator, even in a program that has
nothing on it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core import waking
from torch_jax.core.patching import AT_IMPORT, around, patch

_C10D = "torch.distributed.distributed_c10d"


@around(f"{_C10D}.BackendConfig.__init__", _C10D)
def _patch_backends(original: Any, self: Any, backend: Any) -> None:
    """A process group without a backend takes the accelerator's: programs on the CPU need gloo."""
    kinds = torch.distributed.Backend
    if str(backend) == kinds.UNDEFINED and pytorch.is_accelerator():
        backend = f"cpu:{kinds.default_device_backend_map['cpu']}"
    original(self, backend)


@patch(f"{_C10D}.Backend.register_backend", _C10D, is_registration=True)
def _name_backend(register: Any) -> Any:
    """``init_process_group`` finds the backend "jax" by its name or by ``device_id``."""
    kinds, name = torch.distributed.Backend, pytorch.DEVICE_TYPE
    register(name, _create_group, extended_api=True, devices=[name])

    def undo() -> None:
        del kinds.default_device_backend_map[name], kinds.backend_capability[name]
        kinds.backend_list.remove(name)

    return undo


def _create_group(options: Any, backend_options: Any) -> Any:
    from torch_jax.distributed import process_group

    return process_group.create(options, backend_options)


@around("torch.distributed.device_mesh.init_device_mesh", "torch.distributed.device_mesh")
def _patch_meshes(original: Any, device_type: str, *args: Any, **kwargs: Any) -> Any:
    """A mesh of the device needs a process group of the backend "jax", not of the default."""
    if device_type == pytorch.DEVICE_TYPE and not torch.distributed.is_initialized():
        torch.distributed.init_process_group(pytorch.DEVICE_TYPE)
    return original(device_type, *args, **kwargs)


@around("torch.nn.parallel.DistributedDataParallel.__init__", AT_IMPORT)
def _patch_ddp(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """DDP's reducer asks for pinned memory where it looks for unused parameters.

    ``device_ids=[local_rank]`` means the device of this process, whose number is 0 in each process.
    """
    given = inspect.signature(original).bind(self, *args, **kwargs)
    if len(given.arguments.get("device_ids") or ()) == 1 and is_here(given.arguments["module"]):
        given.arguments |= {"device_ids": [0], "output_device": None}
    original(*given.args, **given.kwargs)
    if waking.is_awake():
        from torch_jax.distributed import unused_parameters

        unused_parameters.serve(self)


@around("torch.distributed.Logger.set_runtime_stats_and_log", AT_IMPORT)
def _patch_statistics(original: Any, self: Any) -> None:
    """DDP's logger has no timer for the device, and each process would warn of it on stderr."""
    if waking.is_awake():
        pytorch.without_warnings(functools.partial(original, self))
    else:
        original(self)


@patch("torch.distributed.tensor.DTensor", "torch.distributed.tensor", is_registration=True)
def _split_attention(_register: Any) -> Any:
    """``DTensor`` can split attention only for the operators of PyTorch's own devices."""
    from torch_jax.distributed import attention

    return attention.register()


@around("torch.nn.parallel.data_parallel._get_available_device_type", AT_IMPORT)
def _patch_data_parallel(original: Any) -> str | None:
    """``nn.DataParallel`` splits batches over an accelerator's devices: here there is one."""
    found = original()
    return None if found == pytorch.DEVICE_TYPE else found


def is_here(module: Any) -> bool:
    """Return whether all parameters of a module are on the device."""
    return {p.device.type for p in module.parameters()} == {pytorch.DEVICE_TYPE}
