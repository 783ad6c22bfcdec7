"""Lightning's accelerator and strategies for the device, derived from a release's base classes."""

from __future__ import annotations

from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.integrations.adapt import choice

STRATEGY = f"{pytorch.DEVICE_TYPE}_spmd"


def accelerator(base: Any) -> Any:
    """Return the class for ``accelerator="jax"``, derived from Lightning's ``Accelerator``."""

    class JaxAccelerator(base):
        """The device ``jax``. Each process has one: ``devices=2`` are two processes."""

        def setup_device(self, device: torch.device) -> None:
            """Check that it is this device."""
            if not choice.is_device(device):
                raise ValueError(f"Device should be {pytorch.DEVICE_TYPE}, got {device} instead.")

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            """Return statistics of the device's memory."""
            return dict(torch.get_device_module(choice.DEVICE).memory_stats())

        def teardown(self) -> None:
            """Do nothing: nothing is left behind."""

        @staticmethod
        def parse_devices(devices: Any) -> int:
            """Return the number of devices, from a number, its text, or a list; -1 is one."""
            count = len(devices) if isinstance(devices, list | tuple) else int(devices)
            return max(count, 1)

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            """Return the device of each process."""
            return [choice.DEVICE] * JaxAccelerator.parse_devices(devices)

        @staticmethod
        def auto_device_count() -> int:
            """Return 1."""
            return 1

        @staticmethod
        def is_available() -> bool:
            """Return whether JAX is installed."""
            return torch.get_device_module(choice.DEVICE).is_available()

        @staticmethod
        def name() -> str:
            """Return its name in the registry."""
            return pytorch.DEVICE_TYPE

    return JaxAccelerator


def spmd_strategy(single: Any) -> Any:
    """Return the class for ``strategy="jax_spmd"``, derived from ``SingleDeviceStrategy``."""

    class JaxSpmdStrategy(single):
        """One process, whose tensors lie over a mesh of devices: data, and parameters by rules.

        ``devices`` is their number; 1, and ``"auto"``, take all that JAX has.
        """

        strategy_name = STRATEGY

        def __init__(self, rules: Any = (), mesh: Any = None, **kwargs: Any) -> None:
            """Take rules for parameters; without any, each device has a copy.

            Args:
              rules: as of :func:`torch_jax.shard`, for the names of parameters and buffers.
              mesh: of :func:`torch_jax.mesh`; its first axis splits batches. One axis ``data``
                over all devices without it.
              kwargs: of ``SingleDeviceStrategy``.
            """
            super().__init__(device=choice.DEVICE, **kwargs)
            self.rules, self._mesh = rules, mesh
            self.parallel_devices: list[torch.device] | None = None  # Lightning fills it in

        @property
        def mesh(self) -> Any:
            """Return the mesh, made at its first use."""
            if self._mesh is None:
                from torch_jax.distributed.mesh import mesh

                asked = len(self.parallel_devices or ())
                self._mesh = mesh(data=asked if asked > 1 else -1)
            return self._mesh

        def _laid(self, batch: Any) -> Any:
            return spread(batch, self.mesh)

        def model_to_device(self) -> None:
            """Move the Trainer's model to the mesh."""
            self.module_to_device(self.model)

        def module_to_device(self, module: torch.nn.Module) -> None:
            """Move a model to the mesh."""
            from torch_jax.distributed.sharding import shard

            shard(module, self.mesh, self.rules)
            module.to(choice.DEVICE)  # for the module's own attributes

        def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            """Move a batch to the mesh, split if its length allows."""
            return self._laid(super().batch_to_device(batch, *args, **kwargs))

        def process_dataloader(self, dataloader: Any) -> Any:
            """Return a loader whose batches are spread over the mesh, for Fabric."""
            loader = super().process_dataloader(dataloader)
            return loader if hasattr(self, "lightning_module") else _Spread(loader, self)

        @classmethod
        def register_strategies(cls, strategy_registry: Any) -> None:
            """Do nothing: it is registered from outside."""

    return JaxSpmdStrategy


class _Spread:
    """A loader whose batches lie over the mesh of a strategy; other attributes are the loader's."""

    def __init__(self, loader: Any, strategy: Any) -> None:
        self._loader, self._strategy = loader, strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        return (spread(batch, self._strategy.mesh) for batch in self._loader)


def spread(batch: Any, mesh: Any) -> Any:
    """Return a batch with the first dimension of its tensors split by the first axis of a mesh.

    A tensor that it does not divide, as in a smaller last batch, lies whole on each device.
    """
    from torch.utils._pytree import tree_map_only

    from torch_jax.distributed.sharding import shard

    axis, count = next(iter(mesh.shape.items()))

    def lay(x: torch.Tensor) -> torch.Tensor:
        fits = x.ndim > 0 and x.shape[0] % count == 0
        return shard(x, mesh, (axis,) if fits else ())

    return tree_map_only(torch.Tensor, lay, batch)
