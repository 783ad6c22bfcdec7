"""The environment: defaults and overrides that hold for a region or for the process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_jax import config
from torch_jax.core.scopes import decorate
from torch_jax.environment import overrides, redirects, regions
from torch_jax.environment.overrides import Override


class Environment:
    """The one environment of a process; :func:`default_env` returns it.

    While it is enabled, factory functions make tensors on device ``jax`` if they are given no
    device (setting ``redirect_default``), and ``"cuda"`` means ``"jax"`` (``redirect_cuda``, off by
    default). It is enabled for a region of this thread, or this asyncio task, by ``with env:``;
    for a function by ``@env``; and for all threads by :meth:`enable_globally`. Tensors and modules
    work the same everywhere, enabled or not.

    >>> import torch
    >>> env = default_env()
    >>> with env:
    ...     x = torch.ones(2)
    >>> x.device.type, torch.ones(2).device.type, env.enabled
    ('jax', 'cpu', False)
    """

    config = config

    def __new__(cls) -> Environment:
        """Return the one environment."""
        return _environment

    def __repr__(self) -> str:
        return f"<torch_jax environment, {'enabled' if self.enabled else 'not enabled'} here>"

    def __reduce__(self) -> tuple:
        return default_env, ()

    @property
    def enabled(self) -> bool:
        """Return whether it is enabled here: on all threads, or by a region of the caller."""
        return regions.is_enabled()

    def enable_globally(self) -> None:
        """Enable it on every thread, running ones included, until :meth:`disable_globally`."""
        redirects.enable_globally()

    def disable_globally(self) -> None:
        """Undo :meth:`enable_globally`; regions (``with env:``) are not touched."""
        regions.everywhere(False)

    def __enter__(self) -> Environment:
        redirects.install()
        regions.regions.enter()
        return self

    def __exit__(self, *_exception: object) -> None:
        regions.regions.leave()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Enable it while ``function`` runs; a generator or coroutine function, too."""
        return decorate(self, function)

    def override(self, target: Any, function: Any = None, **options: Any) -> Any:
        """Serve an operator, or a callable of PyTorch's, with a function of your own.

        With ``function``, it holds for the region of a ``with`` block, on this thread or asyncio
        task; as a decorator, permanently and everywhere, until :meth:`remove_override`. An override
        comes before everything else, in every executor. Inside ``function`` the target is the
        original again.

        Args:
          target: an operator (``torch.ops.aten.relu``, ``"aten::relu"``, ``"add.Tensor"``), all of
            its overloads and derived variants; or a callable, such as
            ``torch.nn.functional.scaled_dot_product_attention`` or ``torch.Tensor.relu``, for
            calls with a tensor on device ``jax`` among their arguments.
          function: takes the target's arguments.
          **options: ``takes="jax"``, a pure function of ``jax.Array``s (the default for
            operators), or ``takes="torch"``, one of tensors (the default for callables); and
            for a JAX function those of :func:`torch_jax.register_op`.

        Raises:
          TypeError: the target is neither an operator nor callable.
          ValueError: this PyTorch has no such operator.

        >>> import torch
        >>> with default_env().override("aten::relu", lambda x: x * 2):
        ...     torch.relu(torch.ones(2, device="jax")).cpu()
        tensor([2., 2.])
        """
        if function is None:
            return functools.partial(overrides.install, target, **options)
        return Override(target, function, **options)

    def remove_override(self, target: Any) -> None:
        """Take away the last permanent override of ``target``; raise ``KeyError`` without any."""
        overrides.remove(target)

    def overrides(self) -> tuple[Override, ...]:
        """Return the overrides in force for the caller, the first to be asked first."""
        return overrides.in_force()


_environment = object.__new__(Environment)


def default_env() -> Environment:
    """Return the environment of this process, always the same object."""
    return _environment
