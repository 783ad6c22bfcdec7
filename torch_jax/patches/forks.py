"""JAX's warning of forks, where a fork does no harm."""

from __future__ import annotations

from typing import Any

from torch_jax.core.patching import AT_FIRST_USE, patch


@patch("jax._src.xla_bridge._at_fork", AT_FIRST_USE)
def _patch_warning(_original: Any) -> Any:
    """JAX says at each fork that a deadlock is likely, so at each data loader that has workers.

    A child of a process that has used the device is kept from it (:mod:`torch_jax.core.forks`), and
    ends without what JAX would wait for. JAX takes the function when it starts its first backend:
    where a program has done so before it uses the device, it warns.
    """
    return lambda: None
