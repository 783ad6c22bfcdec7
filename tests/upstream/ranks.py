"""The surroundings of PyTorch's tests of many processes, for one device.

Importing this module says which device they take, and how many of them there are; the variable
``UPSTREAM_DEVICE`` names it. Each process has one device, and each rank is a process or a thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import _utils
from torch.testing._internal import (
    common_cuda,
    common_device_type,
    common_distributed,
    common_fsdp,
    common_utils,
)
from torch.testing._internal.distributed._tensor import common_dtensor
from torch.utils import _pallas

from tests.upstream.files import RANKS_LIMIT
from tests.upstream.translated import BACKENDS

DEVICE = os.environ.get("UPSTREAM_DEVICE", "jax")
BACKEND = BACKENDS[DEVICE]
COUNT = 2
"""How many devices a test finds: as many ranks has a test that asks for their number."""
MOST = {common_distributed.MultiProcessTestCase: 4, common_distributed.MultiThreadedTestCase: 16}
"""How many processes, or threads, a test may ask for itself."""


def _count(*_: Any) -> int:
    return COUNT


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _same(function: Any) -> Any:
    return function


def _same_with(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """A decorator that adds nothing."""
    return _same


def _skip_if_fewer(x: int, **_: Any) -> Callable[..., Any]:
    """In place of ``skip_if_lt_x_gpu``, which knows some kinds of devices only."""
    return _same if x <= COUNT else original_skip(x)


def _init_pg(self: Any, eager_init: Any, backend: str | None = None) -> None:
    """In place of DTensorTestBase's, which knows some backends only."""
    _join(self, backend or self.backend, self.world_size)


def _create_pg(self: Any, device: str, world_size: int | None = None) -> Any:
    """In place of DistributedTestBase's, whose store is gone when as many ranks as devices are."""
    _join(self, BACKEND, world_size or self.world_size)
    return dist.group.WORLD


def _join(case: Any, backend: str, size: int) -> None:
    method = f"file://{case.file_name}"
    dist.init_process_group(backend, init_method=method, world_size=size, rank=case.rank)


original_skip = common_distributed.skip_if_lt_x_gpu
_module = torch.get_device_module(DEVICE)
_BESIDE_THE_CPU = {  # names that modules of devices have, and the CPU's has not
    "manual_seed": torch.manual_seed,
    "manual_seed_all": torch.manual_seed,
    "initial_seed": torch.initial_seed,
    "get_rng_state": torch.get_rng_state,
    "set_rng_state": torch.set_rng_state,
    "empty_cache": _nothing,
    "current_device": lambda: 0,
    "device": contextlib.nullcontext,
}


def _prepare() -> None:
    # asked at an import, it would start JAX before the processes have met
    _pallas.has_jax_tpu_backend = lambda: False
    torch.accelerator.device_count = _count
    for module in (_module, torch.accelerator):
        module.set_device = module.set_device_index = _nothing
    if DEVICE == "cpu":
        for name, value in _BESIDE_THE_CPU.items():
            setattr(_module, name, getattr(_module, name, value))
    for module in (common_dtensor, common_fsdp):
        module.DEVICE_TYPE, module.DEVICE_COUNT = DEVICE, COUNT
    common_dtensor.PG_BACKEND = common_fsdp.DISTRIBUTED_BACKEND = BACKEND
    common_dtensor.NUM_DEVICES = COUNT
    common_dtensor.DTensorTestBase.init_pg = _init_pg
    common_dtensor.DTensorTestMixin.device_type = DEVICE
    if hasattr(common_dtensor, "DTensorContinuousTestBase"):  # later than PyTorch 2.6
        del common_dtensor.DTensorContinuousTestBase._init_pg  # skips if ranks share devices
    for module in (common_distributed, common_dtensor):
        module.skip_if_lt_x_gpu = _skip_if_fewer
    common_distributed.skip_if_no_gpu = _same
    common_distributed.TIMEOUT_DEFAULT = RANKS_LIMIT - 20
    common_distributed.requires_nccl = _same_with
    # of PyTorch 2.6: each test once more, compiled; a device of a class; an error's name
    vars(common_fsdp).setdefault("test_compiled_fsdp", _same_with)
    common_distributed.MultiProcContinuousTest.device = torch.device(
        DEVICE, None if DEVICE == "cpu" else 0
    )
    common_distributed.MultiProcContinuousTest.world_size = COUNT
    vars(_utils).setdefault("PipeliningShapeError", RuntimeError)
    common_distributed.at_least_x_gpu = lambda x: x <= COUNT
    common_distributed.DistributedTestBase.backend = lambda self, device: BACKEND
    common_distributed.DistributedTestBase.create_pg = _create_pg
    for module in (common_cuda, common_utils):
        module.TEST_CUDA = module.TEST_MULTIGPU = True
    common_device_type.PrivateUse1TestBase.bypass_device_restrictions = True


_prepare()
