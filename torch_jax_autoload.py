"""Name the device ``jax`` when a program imports torch: PyTorch calls :func:`autoload`.

PyTorch has one accelerator in a process, and a device with a name of its own is that accelerator:
backward passes on CUDA fail then (https://github.com/pytorch/pytorch/issues/161129). So where
PyTorch has another accelerator, programs that want the device ``jax`` import torch_jax themselves.

This is a module of its own since torch_jax names the device whenever it is imported.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Name the device ``jax``, unless PyTorch has another accelerator; never break torch.

    The environment may ask for the device in any case: ``TORCH_JAX_ENABLED``, and
    ``python -m torch_jax run`` for the children of a script.
    """
    if is_asked_for() or other_accelerator() is None:
        import torch_jax  # noqa: F401


def is_asked_for() -> bool:
    """Return whether an environment variable wants the device."""
    return any(os.environ.get(name) for name in ("TORCH_JAX_ENABLED", "TORCH_JAX_RUN"))


def other_accelerator() -> str | None:
    """Return the accelerator, such as ``"cuda"``, that PyTorch would have without torch_jax.

    It is one that PyTorch was built for and of which the machine has one or more.

    >>> other_accelerator() in (None, "cuda", "xpu", "mps")
    True
    """
    import torch

    built_for = (torch.cuda, torch.xpu, torch.mps)
    found = (one.__name__.removeprefix("torch.") for one in built_for if one.device_count())
    return next(found, None)
