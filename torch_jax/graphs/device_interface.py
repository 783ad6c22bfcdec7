"""Dynamo's interface of the device (``torch._dynamo.device_interface.DeviceInterface``)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch_jax._private import pytorch
from torch_jax.device import device_module as module


def register(interfaces: ModuleType) -> None:
    """Register the device with Dynamo, whose module of interfaces has just been imported."""
    base: Any = interfaces.DeviceInterface

    class Worker:
        """Answers for processes that compile."""

        set_device = staticmethod(module.set_device)
        current_device = staticmethod(module.current_device)
        get_device_properties = staticmethod(module.get_device_properties)

    class JaxInterface(base):
        """The interface of one logical device with one stream, and no Triton."""

        Event, Stream = module.Event, module.Stream
        current_device = staticmethod(module.current_device)
        set_device = staticmethod(module.set_device)
        device_count = staticmethod(module.device_count)
        is_available = staticmethod(module.is_available)
        current_stream = staticmethod(module.current_stream)
        set_stream = staticmethod(module.set_stream)
        stream = staticmethod(module.stream)
        synchronize = staticmethod(module.synchronize)
        memory_allocated = staticmethod(module.memory_allocated)
        get_compute_capability = staticmethod(lambda device=None: "")
        is_bf16_supported = staticmethod(module.is_bf16_supported)
        exchange_device = staticmethod(lambda device: 0)
        maybe_exchange_device = staticmethod(lambda device: 0)
        get_raw_stream = staticmethod(lambda device_idx: 0)

    JaxInterface.Worker = Worker
    for name in (pytorch.DEVICE_TYPE, f"{pytorch.DEVICE_TYPE}:0"):
        interfaces.register_interface_for_device(name, JaxInterface)
