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
from torch_jax.core.patching import patch
from torch_jax.integrations.adapt import choice, lightning_classes

TRAINERS = ("lightning.pytorch", "pytorch_lightning")
FABRICS = ("lightning.fabric", "lightning_fabric")
_SINCE = "lightning 2.4"
_NAME = pytorch.DEVICE_TYPE


def _register_accelerator(base: str, registry: Any) -> Callable[[], None]:
    """Lightning looks up ``accelerator="jax"`` in a registry of its own."""
    accelerator = importlib.import_module(f"{base}.accelerators.accelerator").Accelerator
    registry.register(
        _NAME, lightning_classes.accelerator(accelerator), description="JAX's devices"
    )
    return functools.partial(registry.pop, _NAME)


def _register_strategy(base: str, registry: Any) -> Callable[[], None]:
    """Lightning looks up ``strategy="jax_spmd"`` in a registry of its own."""
    single = importlib.import_module(f"{base}.strategies.single_device").SingleDeviceStrategy
    made = lightning_classes.spmd_strategy(single)
    registry.register(made.strategy_name, made, description="one process, a mesh of devices")
    return functools.partial(registry.pop, made.strategy_name)


def _patch_auto(original: Any) -> Any:
    """Lightning's ``accelerator="auto"`` chooses from a list in which this device is not."""

    def choose() -> str:
        found = original()
        return _NAME if choice.is_left(found) else found

    return staticmethod(choose)


def _patch_gpu(original: Any) -> Any:
    """Lightning's ``accelerator="gpu"`` means CUDA or Metal only, and raises without them."""

    def choose() -> str:
        return _NAME if choice.is_chosen() else original()

    return staticmethod(choose)


def _patch_strategy(original: Any) -> Any:
    """Lightning gives devices that are no GPU by name the strategy of one device, on the CPU."""

    @functools.wraps(original)
    def choose(self: Any) -> Any:
        found = original(self)
        if self.accelerator.name() == _NAME and hasattr(found, "_root_device"):
            found._root_device = choice.DEVICE
        return found

    return choose


def _patch_precision(original: Any) -> Any:
    """Lightning's mixed precision is CUDA's, except for devices in a list without this one."""
    return choice.admit(original, "mps")


def _patch_device_ids(original: Any) -> Any:
    """Lightning wraps a module on one device on a stream of CUDA's, which is not there."""

    @functools.wraps(original)
    def determine(self: Any) -> Any:
        return None if choice.is_device(self.root_device) else original(self)

    return determine


def _patch_collect(original: Any) -> Any:
    """Lightning keeps only CUDA's random states for code that must leave them unchanged."""

    @functools.wraps(original)
    def collect(*args: Any, **kwargs: Any) -> Any:
        states = original(*args, **kwargs)
        if choice.is_chosen():
            states[f"torch.{_NAME}"] = torch.get_device_module(_NAME).get_rng_state()
        return states

    return collect


def _patch_restore(original: Any) -> Any:
    """Lightning restores only CUDA's random states after code that must leave them unchanged."""

    @functools.wraps(original)
    def restore(states: dict[str, Any]) -> None:
        original(states)
        if f"torch.{_NAME}" in states:
            torch.get_device_module(_NAME).set_rng_state(states[f"torch.{_NAME}"])

    return restore


def _enter(root: str, module: str, targets: dict[str, Callable[[Any], Any]]) -> None:
    for name, make in targets.items():
        registers = name.lower().endswith("registry")
        why = (make.func if isinstance(make, functools.partial) else make).__doc__ or ""
        when = f"{root}.{module}"
        patch(f"{when}.{name}", when, since=_SINCE, is_registration=registers, why=why)(make)


def _both(
    root: str, connector: str, name: str, device_ids: str, registries: tuple[str, str]
) -> None:
    """Enter the patches that the Trainer and Fabric have in common."""
    _enter(root, "accelerators", {registries[0]: functools.partial(_register_accelerator, root)})
    _enter(root, "strategies", {registries[1]: functools.partial(_register_strategy, root)})
    _enter(root, "strategies.ddp", {f"DDPStrategy.{device_ids}": _patch_device_ids})
    chosen = {
        "_choose_auto_accelerator": _patch_auto,
        "_choose_gpu_accelerator_backend": _patch_gpu,
        "_choose_strategy": _patch_strategy,
        "_check_and_init_precision": _patch_precision,
    }
    _enter(root, connector, {f"{name}.{method}": make for method, make in chosen.items()})


for _root in TRAINERS:
    _both(
        _root,
        "trainer.connectors.accelerator_connector",
        "_AcceleratorConnector",
        "determine_ddp_device_ids",
        ("AcceleratorRegistry", "StrategyRegistry"),
    )
for _root in FABRICS:
    _both(
        _root,
        "connector",
        "_Connector",
        "_determine_ddp_device_ids",
        ("ACCELERATOR_REGISTRY", "STRATEGY_REGISTRY"),
    )
    _enter(
        _root,
        "utilities.seed",
        {"_collect_rng_states": _patch_collect, "_set_rng_states": _patch_restore},
    )
