"""JAX as a native device of PyTorch.

``pip install torch_jax`` and every PyTorch program has a device named ``jax``:

>>> import torch
>>> (torch.ones(2, 2, device="jax") + 1).cpu()
tensor([[2., 2.],
        [2., 2.]])

Importing this package (which ``import torch`` does by itself) only names the device. JAX and the
table of operators are imported when the device is first used.
"""

from __future__ import annotations

from typing import Any

from torch_jax._version import __version__ as __version__


def _autoload() -> None:
    """Entry point of the group ``torch.backends``: name the device, and never break torch."""
    try:
        from torch_jax.startup import register

        register.register()
    except Exception as error:  # an exception here would make ``import torch`` itself fail
        global _failure
        _failure = error


_failure: Exception | None = None
_LAZY = {
    "Environment": "environment.environment",
    "default_env": "environment.environment",
    "JaxInterpreter": "graphs.interpreter",
    "DataDependentError": "core.tracers",
    "NotTraceableError": "core.tracers",
    "OperatorNotFound": "core.errors",
    "register_op": "environment.overrides",
    "is_jax_module": "observe.placement",
    "scan_layers": "capture.scan_layers",
    "trace_ops": "observe.trace_ops",
    "where_is": "observe.placement",
    "VerificationError": "capture.verify",
    "config": "config",
    "explain": "capture.history",
    "export": "exporting.export",
    "jit": "capture.jit",
    "lower": "capture.jit",
}

import torch  # noqa: E402, F401, torch may call _autoload while it is imported here

_autoload()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'torch_jax' has no attribute {name!r}")
    if _failure is not None:
        raise RuntimeError(f"torch_jax could not register its device: {_failure}") from _failure
    import importlib

    module = importlib.import_module(f"torch_jax.{_LAZY[name]}")
    return module if _LAZY[name] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
