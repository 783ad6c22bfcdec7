"""Dynamo's interface of the device (``torch._dynamo.device_interface.DeviceInterface``)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch_jax._private import pytorch
from torch_jax.device import device_module as module

# functions of the device's module that Dynamo asks for
_OF_WORKERS = "current_device get_device_properties set_device"
_OF_INTERFACES = """
    current_device current_stream device_count is_available is_bf16_supported memory_allocated
    set_device set_stream stream synchronize
"""


def register(interfaces: ModuleType) -> None:
    """Register the device with Dynamo, whose module of interfaces has just been imported."""
    base: Any = interfaces.DeviceInterface

    class Worker:
        """Answers for processes that compile."""

    class JaxInterface(base):
        """The interface of one logical device with one stream, and no Triton."""

        Event, Stream = module.Event, module.Stream
        get_compute_capability = staticmethod(lambda device=None: "")
        exchange_device = staticmethod(lambda device: 0)
        maybe_exchange_device = staticmethod(lambda device: 0)
        get_raw_stream = staticmethod(lambda device_idx: 0)

    for interface, names in ((Worker, _OF_WORKERS), (JaxInterface, _OF_INTERFACES)):
        for name in names.split():
            setattr(interface, name, staticmethod(getattr(module, name)))
    JaxInterface.Worker = Worker
    for name in (pytorch.DEVICE_TYPE, f"{pytorch.DEVICE_TYPE}:0"):
        interfaces.register_interface_for_device(name, JaxInterface)
