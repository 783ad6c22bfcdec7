"""The device itself: its name, its guard, and the doors that wake it at first use.

:func:`register` runs inside ``import torch`` and must be quick: it names PyTorch's PrivateUse1
device ``jax`` and leaves two doors – the factories ``empty`` and ``empty_strided``, and a boxed
fallback – through which every first use of the device comes. Behind them
:func:`~torch_jax.core.waking.wake` imports JAX and the table of operators, once.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from torch_jax import config
from torch_jax._private import dynamo, pytorch
from torch_jax.core import waking
from torch_jax.patches import hook_errors
from torch_jax.startup import process_exit, start

_libraries: list[Any] = []


class _Hook(pytorch.HookBase):
    """Answers C++'s questions about the device (``at::PrivateUse1HooksInterface``)."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return waking.is_awake()

    def is_built(self) -> bool:
        return True


def register() -> None:
    """Make ``torch.device("jax")`` known; do nothing the second time."""
    with waking.LOCK:
        if _libraries:
            return
        if pytorch.backend_name() not in ("privateuseone", pytorch.DEVICE_TYPE):
            raise RuntimeError(
                "PyTorch has room for one out-of-tree device, and "
                f"'{pytorch.backend_name()}' has taken it"
            )
        from torch_jax.device import device_module, precision_switches
        from torch_jax.integrations import install as integrations
        from torch_jax.patches import install

        waking.on_wake(start.start)
        process_exit.install()
        guard = hook_errors.Guard()
        pytorch.set_up_backend(pytorch.DEVICE_TYPE, device_module, _Hook(), guard)
        precision_switches.install()
        doors = torch.library.Library("aten", "IMPL")
        for name in waking.DOORS:
            doors.impl(name, _door(name), "PrivateUse1")
        rest = torch.library.Library("_", "IMPL")
        rest.fallback(dynamo.unseen(_fallback), "PrivateUse1")
        autocast = torch.library.Library("_", "IMPL")
        autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        _libraries.extend((doors, rest, autocast))
        install.at_import()
        integrations.install()
        if config.get("enabled"):
            _enable()


def _enable() -> None:
    """Follow ``TORCH_JAX_ENABLED``, and ``python -m torch_jax run`` in its children."""
    from torch_jax.environment import redirects

    redirects.enable_globally()
    if os.environ.get("TORCH_JAX_RUN"):
        from torch_jax.observe.running import costs

        costs.follow()


def _door(name: str) -> Any:
    """Return a factory that wakes the device before it makes the first tensor."""

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        waking.wake()
        from torch_jax.dispatch.storage_kernels import KERNELS

        kernels[0] = KERNELS[name]
        return kernels[0](*args, **kwargs)

    kernels = [call]
    return lambda *args, **kwargs: kernels[0](*args, **kwargs)


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    waking.wake()
    from torch_jax.dispatch import ladder

    return ladder.fallback(op, *args, **kwargs)
