"""``torchax.ops.ops_registry``: replacements of operators, from the moment they are registered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_jax.compat.ax.environment import default_env
from torch_jax.environment import environment


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
