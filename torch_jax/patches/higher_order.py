"""Operators that take functions: control flow, checkpointing, flex_attention."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_jax._private import pytorch
from torch_jax.core.active import ACTIVE
from torch_jax.core.patching import AT_IMPORT, patch


@patch(
    "torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", AT_IMPORT, is_registration=True
)
def _follow_autocast(_defaults: Any) -> Callable[[], None]:
    """Operators of functions know autocast of PyTorch's own devices, and raise for others."""
    return pytorch.follow_autocast()


def _serve(kernel: str, op: Any) -> Callable[[], None] | None:
    """Give a higher-order operator the kernel of that name."""
    if (dense := pytorch.dense_kernel(op)) is None:
        return None

    def call(*args: Any, **kwargs: Any) -> Any:
        from torch_jax.dispatch import control_flow

        return getattr(control_flow, kernel)(dense, *args, **kwargs)

    return pytorch.add_kernel(op, call)


for _module, _operator, _kernel in (
    ("cond", "cond_op", "cond"),
    ("map", "map_impl", "map_"),
    ("scan", "scan_op", "scan"),
    ("while_loop", "while_loop_op", "while_loop"),
):
    patch(
        f"torch._higher_order_ops.{_module}.{_operator}",
        f"torch._higher_order_ops.{_module}",
        is_registration=True,
        why="PyTorch's kernel reads values: under a trace JAX's own control flow replaces it.",
    )(functools.partial(_serve, _kernel))


# Dynamo sees through the replacements below: it traces functions of this module, and not `around`.


@patch("torch._higher_order_ops.utils.setup_compilation_env", "torch._higher_order_ops.utils")
def _patch_compilation(original: Any) -> Any:
    """Dynamo makes graphs of the functions, which it cannot where operators are observed.

    flex_attention imports this function by name, later.
    """

    def setup_compilation_env() -> Any:
        if ACTIVE.tracer is None and ACTIVE.observer is None:
            return original()
        from torch_jax.dispatch import control_flow

        return control_flow.compiling(original)

    return setup_compilation_env


@patch("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint")
def _patch_checkpoint(original: Any) -> Any:
    """XLA would merge a recomputation with the first computation, which frees no memory."""

    @functools.wraps(original)
    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        if ACTIVE.tracer is None and ACTIVE.recorder is None:
            return original(function, *args, **kwargs)
        from torch_jax.loops.recomputation import Recomputed

        recomputed = Recomputed(function)
        if "context_fn" in kwargs:
            kwargs["context_fn"] = recomputed.contexts(kwargs["context_fn"])
        return recomputed.watch(original(recomputed, *args, **kwargs))

    return checkpoint


@patch("torch.nn.attention.flex_attention._validate_device", "torch.nn.attention.flex_attention")
def _patch_validate_device(original: Any) -> Any:
    """PyTorch refuses devices that are not in its list, though its composite code runs on any."""

    def validate(query: Any, key: Any, value: Any) -> None:
        if query.device.type != pytorch.DEVICE_TYPE:
            original(query, key, value)

    return validate
