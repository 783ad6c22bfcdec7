"""``torchax.ops``: ``jaten``, ``jtorch``, ``jlibrary``, ``ops_registry``, which replace operators.

A replacement holds from the moment it is registered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from torch_jax.compat.ax.environment import default_env
from torch_jax.compat.ax.interop import of_arrays
from torch_jax.environment import environment

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def register_torch_dispatch_op(
    aten_op: Any,
    impl_callable: Callable[..., Any],
    is_jax_function: bool = True,
    is_user_defined: bool = False,
    needs_env: bool = False,
    is_view_op: bool = False,
) -> Callable[..., Any]:
    """Replace an operator, or a function of PyTorch's, by a function of arrays, or of tensors.

    Return the function.
    """
    function = impl_callable
    if needs_env:
        function = functools.partial(impl_callable, env=default_env())
    takes = "jax" if is_jax_function else "torch"
    environment.default_env().override(aten_op, takes=takes)(function)
    return impl_callable


register_torch_function_op = register_torch_dispatch_op


def op(*aten: Any, **kwargs: Any) -> Decorator:
    """Replace these operators by the decorated function."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in aten:
            register_torch_dispatch_op(one, function, **kwargs)
        return function

    return enter


def register_function(torch_func: Any, **kwargs: Any) -> Decorator:
    """Replace a function of PyTorch's by the decorated function."""
    return op(torch_func, **kwargs)


def register_jax_composite(
    composite_name: str, impl: Callable[..., Any], *ops: Any, **jit_args: Any
) -> None:
    """Replace operators by a function of arrays, which has this name under ``jax.jit``."""

    def named(*args: Any) -> Any:
        return impl(*args)

    named.__name__ = named.__qualname__ = composite_name
    op(*ops)(jax.jit(named, **jit_args))


def register_torch_composite(
    composite_name: str, impl: Callable[..., Any], *ops: Any, **jit_args: Any
) -> None:
    """Replace operators by a function of tensors, or a module, which has this name."""
    register_jax_composite(composite_name, of_arrays(lambda *args: impl(*args)), *ops, **jit_args)
