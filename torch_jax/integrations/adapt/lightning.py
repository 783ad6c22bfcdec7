"""Lightning's Trainer and Fabric: an accelerator, a strategy over a mesh, and fixes for the device.

The same code is shipped as ``lightning``, and as ``pytorch_lightning`` and ``lightning_fabric``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import around, patch
from torch_jax.device import device_module
from torch_jax.integrations.adapt import choice

TRAINERS = ("lightning.pytorch", "pytorch_lightning")
FABRICS = ("lightning.fabric", "lightning_fabric")
STRATEGY = f"{pytorch.DEVICE_TYPE}_spmd"
_SINCE = "lightning 2.4"
_NAME = pytorch.DEVICE_TYPE


def _each(enter: Callable[..., Any], of_trainers: str, of_fabrics: str) -> Callable[..., Any]:
    """Return a decorator that enters a row for each package; targets are ``module:name``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for roots, target in ((TRAINERS, of_trainers), (FABRICS, of_fabrics)):
            module, _, name = target.partition(":")
            for root in roots if target else ():
                enter(f"{root}.{module}.{name}", f"{root}.{module}", _SINCE)(function)
        return function

    return decorate


def _connector(enter: Callable[..., Any], method: str) -> Callable[..., Any]:
    return _each(
        enter,
        f"trainer.connectors.accelerator_connector:_AcceleratorConnector.{method}",
        f"connector:_Connector.{method}",
    )


@_connector(patch, "_choose_auto_accelerator")
def _patch_auto(original: Any) -> Any:
    """Lightning's ``accelerator="auto"`` chooses from a list in which this device is not."""

    def choose() -> str:
        found = original()
        return _NAME if choice.is_left(found) else found

    return staticmethod(choose)


@_connector(patch, "_choose_gpu_accelerator_backend")
def _patch_gpu(original: Any) -> Any:
    """Lightning's ``accelerator="gpu"`` means CUDA or Metal only, and raises without them."""
    return staticmethod(lambda: _NAME if choice.is_chosen() else original())


@_connector(around, "_choose_strategy")
def _patch_strategy(original: Any, self: Any) -> Any:
    """Lightning gives devices that are no GPU by name the strategy of one device, on the CPU."""
    found = original(self)
    if self.accelerator.name() == _NAME and hasattr(found, "_root_device"):
        found._root_device = choice.DEVICE
    return found


@_connector(patch, "_check_and_init_precision")
def _patch_precision(original: Any) -> Any:
    """Lightning's mixed precision is CUDA's, except for devices in a list without this one."""
    return choice.admit(original, "mps")


@_each(
    around,
    "strategies.ddp:DDPStrategy.determine_ddp_device_ids",
    "strategies.ddp:DDPStrategy._determine_ddp_device_ids",
)
def _patch_device_ids(original: Any, self: Any) -> Any:
    """Lightning wraps a module on one device on a stream of CUDA's, which is not there."""
    return None if choice.is_device(self.root_device) else original(self)


@_each(around, "", "utilities.seed:_collect_rng_states")
def _patch_collect(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Lightning keeps only CUDA's random states for code that must leave them unchanged."""
    states = original(*args, **kwargs)
    if choice.is_chosen():
        states[f"torch.{_NAME}"] = device_module.get_rng_state()
    return states


@_each(around, "", "utilities.seed:_set_rng_states")
def _patch_restore(original: Any, states: dict[str, Any]) -> None:
    """Lightning restores only CUDA's random states after code that must leave them unchanged."""
    original(states)
    if f"torch.{_NAME}" in states:
        device_module.set_rng_state(states[f"torch.{_NAME}"])


def _registry(target: str, when: str, since: str) -> Callable[..., Any]:
    def enter(make: Callable[[str, Any], Any]) -> None:
        why, base = make.__doc__ or "", when.rpartition(".")[0]
        patch(target, when, since, True, why)(functools.partial(make, base))

    return enter


@_each(_registry, "accelerators:AcceleratorRegistry", "accelerators:ACCELERATOR_REGISTRY")
def _register_accelerator(base: str, registry: Any) -> Callable[[], None]:
    """Lightning looks up ``accelerator="jax"`` in a registry of its own."""
    accelerator = importlib.import_module(f"{base}.accelerators.accelerator").Accelerator
    registry.register(_NAME, _accelerator(accelerator), description="JAX's devices")
    return functools.partial(registry.pop, _NAME)


@_each(_registry, "strategies:StrategyRegistry", "strategies:STRATEGY_REGISTRY")
def _register_strategy(base: str, registry: Any) -> Callable[[], None]:
    """Lightning looks up ``strategy="jax_spmd"`` in a registry of its own."""
    single = importlib.import_module(f"{base}.strategies.single_device").SingleDeviceStrategy
    made = _spmd_strategy(single)
    registry.register(STRATEGY, made, description="one process, a mesh of devices")
    return functools.partial(registry.pop, STRATEGY)


# --- classes, derived from a release's base classes -----------------------------------------------


def _accelerator(base: Any) -> Any:
    """Return the class for ``accelerator="jax"``, derived from Lightning's ``Accelerator``."""

    class JaxAccelerator(base):
        """The device ``jax``. Each process has one: ``devices=2`` are two processes."""

        def setup_device(self, device: torch.device) -> None:
            if not choice.is_device(device):
                raise ValueError(f"Device should be {pytorch.DEVICE_TYPE}, got {device} instead.")

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return dict(device_module.memory_stats())

        def teardown(self) -> None:
            """Do nothing: nothing is left behind."""

        @staticmethod
        def parse_devices(devices: Any) -> int:
            """Return the number of devices, from a number, its text, or a list; -1 is one."""
            count = len(devices) if isinstance(devices, list | tuple) else int(devices)
            return max(count, 1)

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [choice.DEVICE] * JaxAccelerator.parse_devices(devices)

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return device_module.is_available()

        @staticmethod
        def name() -> str:
            return pytorch.DEVICE_TYPE

    return JaxAccelerator


def _spmd_strategy(single: Any) -> Any:
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

        def model_to_device(self) -> None:
            self.module_to_device(self.model)

        def module_to_device(self, module: torch.nn.Module) -> None:
            from torch_jax.distributed.sharding import shard

            shard(module, self.mesh, self.rules)
            module.to(choice.DEVICE)  # for the module's own attributes

        def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            return _spread(super().batch_to_device(batch, *args, **kwargs), self.mesh)

        def process_dataloader(self, dataloader: Any) -> Any:
            """Return a loader whose batches are spread over the mesh, for Fabric."""
            loader = super().process_dataloader(dataloader)
            return loader if hasattr(self, "lightning_module") else _Loader(loader, self)

        @classmethod
        def register_strategies(cls, strategy_registry: Any) -> None:
            """Do nothing: it is registered from outside."""

    return JaxSpmdStrategy


class _Loader:
    """A loader whose batches lie over the mesh of a strategy; other attributes are the loader's."""

    def __init__(self, loader: Any, strategy: Any) -> None:
        self._loader, self._strategy = loader, strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        return (_spread(batch, self._strategy.mesh) for batch in self._loader)


def _spread(batch: Any, mesh: Any) -> Any:
    """Return a batch with the first dimension of its tensors split by the first axis of a mesh.

    A tensor that it does not divide, as in a smaller last batch, lies whole on each device.
    """
    from torch_jax.loops.device_loader import moved, sharder

    return moved(batch, sharder(mesh, tuple(mesh.shape)[:1]))
