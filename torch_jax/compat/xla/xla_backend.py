"""``torch_xla.distributed.xla_backend``: importing it names the backend ``"xla"``.

``torch.distributed.init_process_group("xla", init_method="xla://")`` is a group on device jax.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from torch_jax._private import pytorch
from torch_jax.compat.xla import world
from torch_jax.distributed import process_group

NAME = "xla"


def _rendezvous(url: str, **_options: Any) -> Iterator[tuple[Any, int, int]]:
    """Meet the processes of ``xla://``, at the store of PyTorch/XLA's own collectives."""
    yield dist.PrefixStore("xla://", world.store()), world.rank(), world.size()


_own = dist.Backend.default_device_backend_map[pytorch.DEVICE_TYPE]
dist.Backend.register_backend(
    NAME, process_group.create, extended_api=True, devices=[pytorch.DEVICE_TYPE]
)
dist.Backend.default_device_backend_map[pytorch.DEVICE_TYPE] = _own
dist.register_rendezvous_handler(NAME, _rendezvous)
