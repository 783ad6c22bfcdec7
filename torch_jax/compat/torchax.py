"""``torchax``: environments, modules as functions of JAX, compiled modules, checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch

from torch_jax import config
from torch_jax._version import __version__ as __version__
from torch_jax.compat.ax import interop
from torch_jax.compat.ax.environment import Environment
from torch_jax.compat.ax.environment import default_env as default_env
from torch_jax.compat.ax.flax import load_checkpoint as load_checkpoint
from torch_jax.compat.ax.flax import save_checkpoint as save_checkpoint
from torch_jax.core import patching
from torch_jax.interop.functional import functional
from torch_jax.patches import torchax as _methods  # noqa: F401, whose rows are applied here

patching.apply("torchax")

VERSION = __version__


def extract_jax(
    mod: torch.nn.Module, env: Any = None, *, dedup_parameters: bool = True
) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Return the parameters and buffers of a module as arrays, and a function of them.

    The function is ``f(states, args, kwargs=None, rng=None)``. It does not return written buffers:
    ``torch_jax.functional`` does.
    """
    function, params, buffers = functional(mod)

    def call(states: dict[str, Any], args: Any, kwargs: Any = None, rng: Any = None) -> Any:
        weights, others = ({name: states[name] for name in one} for one in (params, buffers))
        return function(weights, others, *args, rng=rng, **(kwargs or {}))[0]

    return {**buffers, **params}, call


def enable_globally() -> Environment:
    """Let ``"cuda"`` mean ``"jax"`` on every thread; tensors of the device need nothing."""
    default_env().enable_torch_modes()
    return default_env()


def disable_globally() -> None:
    """Undo :func:`enable_globally`."""
    default_env().disable_torch_modes()


@contextlib.contextmanager
def disable_temporarily() -> Iterator[tuple[()]]:
    """Undo :func:`enable_globally` in a block."""
    if was_enabled := default_env().enabled:
        disable_globally()
    try:
        yield ()
    finally:
        if was_enabled:
            enable_globally()


def enable_accuracy_mode() -> None:
    """Turn on JAX's 64-bit types, and exact products; tensors always have 64-bit types."""
    jax.config.update("jax_enable_x64", True)
    config.set("matmul_precision", "highest")
    default_env().config.internal_respect_torch_return_dtypes = True


def enable_performance_mode() -> None:
    """Turn off JAX's 64-bit types, and make products only as exact as is fast on the device."""
    jax.config.update("jax_enable_x64", False)
    config.set("matmul_precision", "medium")
    default_env().config.internal_respect_torch_return_dtypes = False


@dataclasses.dataclass
class CompileOptions:
    """Options of :func:`compile`.

    Attributes:
      methods_to_compile: of a module.
      jax_jit_kwargs: options of ``jax.jit`` for them; without, ``torch_jax.jit`` compiles.
      mode: ``"jax"``.
    """

    methods_to_compile: list[str] = dataclasses.field(default_factory=lambda: ["forward"])
    jax_jit_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    mode: str = "jax"


def compile(fn: Any, options: CompileOptions | None = None) -> Any:
    """Return a module whose methods are compiled, or a function under ``jax.jit``."""
    options = options or CompileOptions()
    if options.mode != "jax":
        raise RuntimeError(
            f"mode {options.mode!r} is not supported: torch.compile(backend='jax') traces by "
            "Dynamo, torch_jax.export exports"
        )
    if not isinstance(fn, torch.nn.Module):
        return interop.jitted(fn, options.jax_jit_kwargs)
    module = interop.JittableModule(fn, extra_jit_args=options.jax_jit_kwargs or None)
    for name in options.methods_to_compile:
        module.make_jitted(name)
    return module
