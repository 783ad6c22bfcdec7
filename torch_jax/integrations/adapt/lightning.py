"""Lightning's Trainer and Fabric: an accelerator, a strategy over a mesh, and what leaves them out.

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
    """``accelerator="jax"`` is a name of its registry."""
    accelerator = importlib.import_module(f"{base}.accelerators.accelerator").Accelerator
    registry.register(
        _NAME, lightning_classes.accelerator(accelerator), description="JAX's devices"
    )
    return functools.partial(registry.pop, _NAME)


def _register_strategy(base: str, registry: Any) -> Callable[[], None]:
    """``strategy="jax_spmd"`` is a name of its registry."""
    single = importlib.import_module(f"{base}.strategies.single_device").SingleDeviceStrategy
    made = lightning_classes.spmd_strategy(single)
    registry.register(made.strategy_name, made, description="one process, a mesh of devices")
    return functools.partial(registry.pop, made.strategy_name)


def _patch_auto(original: Any) -> Any:
    """``accelerator="auto"`` asks for the accelerators that it knows."""

    def choose() -> str:
        found = original()
        return _NAME if choice.is_left(found) else found

    return staticmethod(choose)


def _patch_gpu(original: Any) -> Any:
    """``accelerator="gpu"`` knows CUDA and Metal, and raises without them."""

    def choose() -> str:
        return _NAME if choice.is_chosen() else original()

    return staticmethod(choose)


def _patch_strategy(original: Any) -> Any:
    """What is no GPU by name gets the strategy of one device with the CPU."""

    @functools.wraps(original)
    def choose(self: Any) -> Any:
        found = original(self)
        if self.accelerator.name() == _NAME and hasattr(found, "_root_device"):
            found._root_device = choice.DEVICE
        return found

    return choose


def _patch_precision(original: Any) -> Any:
    """Mixed precision is that of CUDA for all but the devices of a list."""
    return choice.admit(original, "mps")


def _patch_device_ids(original: Any) -> Any:
    """A module on one device is wrapped on a stream of CUDA's, of which there are none."""

    @functools.wraps(original)
    def determine(self: Any) -> Any:
        return None if choice.is_device(self.root_device) else original(self)

    return determine


def _patch_collect(original: Any) -> Any:
    """What must draw no random numbers of the program's is given back CUDA's states only."""

    @functools.wraps(original)
    def collect(*args: Any, **kwargs: Any) -> Any:
        states = original(*args, **kwargs)
        if choice.is_chosen():
            states[f"torch.{_NAME}"] = torch.get_device_module(_NAME).get_rng_state()
        return states

    return collect


def _patch_restore(original: Any) -> Any:
    """The same, given back."""

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
    """What the Trainer and Fabric have alike."""
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
