"""``torch_xla.distributed.parallel_loader``: batches on the device, and a step for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch_jax.compat.xla import xla_model
from torch_jax.recorded.device_loader import DeviceLoader


class MpDeviceLoader:
    """Iterates over a loader with the tensors of each batch on the device; ends a step after each.

    Args:
      loader: what gives the batches.
      device: of this process.
      batches_per_execution: how many batches a step has.
      kwargs: ``loader_prefetch_size`` and others that say how PyTorch/XLA loads ahead; of these,
        ``device_prefetch_size`` is how many batches wait on the device.
    """

    def __init__(
        self, loader: Iterable[Any], device: Any, batches_per_execution: int = 1, **kwargs: Any
    ):
        self._loader, self._device = loader, device
        self._every, self._ahead = batches_per_execution, kwargs.get("device_prefetch_size", 2)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = DeviceLoader(self._loader, ahead=max(self._ahead, 1))
        for number, batch in enumerate(batches, start=1):
            yield batch
            if number % self._every == 0:
                xla_model.mark_step()
        xla_model.mark_step()


class ParallelLoader:
    """The same for a list of devices, of which there is one."""

    def __init__(self, loader: Iterable[Any], devices: list[Any], **kwargs: Any):
        self._loader, self._options = loader, kwargs

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """The batches of a device."""
        return MpDeviceLoader(self._loader, device, **self._options)

    def close(self) -> None:
        """Nothing is left open between two iterations."""
