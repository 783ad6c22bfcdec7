"""``torch_xla.distributed.parallel_loader``: batches on the device, and a step for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch_jax.compat.xla import xla_model
from torch_jax.compat.xla.spmd import ShardingSpec
from torch_jax.loops.device_loader import DeviceLoader


class MpDeviceLoader:
    """Iterates over a loader with the tensors of each batch on the device; ends a step after each.

    Args:
      loader: an iterable of batches.
      device: of this process.
      batches_per_execution: the number of batches of a step.
      input_sharding: a ``ShardingSpec`` by which the tensors of a batch are laid over a mesh, or a
        dict of such by the keys of a batch.
      kwargs: ``loader_prefetch_size`` and others about PyTorch/XLA's loading ahead; only
        ``device_prefetch_size`` is used, the number of batches that wait on the device.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: Any,
        batches_per_execution: int = 1,
        input_sharding: Any = None,
        **kwargs: Any,
    ):
        self._loader, self._device, self._sharding = loader, device, input_sharding
        self._every, self._ahead = batches_per_execution, kwargs.get("device_prefetch_size", 2)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        one = self._sharding if isinstance(self._sharding, ShardingSpec) else None
        where = {"mesh": one.mesh.jax_mesh, "spec": one.jax_spec()} if one else {}
        batches = DeviceLoader(self._loader, ahead=max(self._ahead, 1), **where)
        for number, batch in enumerate(batches, start=1):
            for key, spec in self._sharding.items() if self._sharding and not one else ():
                if spec is not None:
                    spec.apply(batch[key])
            yield batch
            if number % self._every == 0:
                xla_model.mark_step()
        xla_model.mark_step()


class ParallelLoader:
    """A loader for a list of devices, of which there is one."""

    def __init__(self, loader: Iterable[Any], devices: list[Any], **kwargs: Any):
        self._loader, self._options = loader, kwargs

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """Return the batches of a device."""
        return MpDeviceLoader(self._loader, device, **self._options)

    def close(self) -> None:
        """Do nothing: nothing is left open between two iterations."""
