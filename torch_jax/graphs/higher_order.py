"""Higher-order operators of graphs that are no control flow: their function is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch

from torch_jax._private import pytorch
from torch_jax.core.active import ACTIVE
from torch_jax.dispatch import control_flow
from torch_jax.graphs.graph_run import GraphRun
from torch_jax.memory import storage


def _checkpoint(function: Callable[..., Any], *operands: Any, **_options: Any) -> Any:
    return control_flow.checkpoint(function, operands)


def _call(function: Callable[..., Any], *operands: Any, **kwargs: Any) -> Any:
    return function(*operands, **kwargs)


def _invoke(function: Callable[..., Any], _identifier: Any, *operands: Any) -> Any:
    return function(*operands)


def _with_grad(_enabled: bool, function: Callable[..., Any], *operands: Any) -> Any:
    return function(*operands)


def _with_autocast(_device, dtype, enabled, cache, function, *operands: Any, **kwargs: Any) -> Any:
    with torch.autocast(pytorch.DEVICE_TYPE, dtype, enabled, cache):
        return function(*operands, **kwargs)


def _hints(function: Callable[..., Any], args: Any, kwargs: Any, _hints: Any) -> Any:
    return function(*args, **kwargs)


def _effects(token: Any, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = op(*args, **kwargs)
    return (token, *result) if isinstance(result, tuple) else (token, result)


def _save_draw(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the state that an operator draws from, and its result."""
    run: GraphRun = ACTIVE.tracer
    words = storage.wrap(jnp.asarray(run.peek()))
    return words, op(*args, **kwargs)


def _repeat_draw(words: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    run: GraphRun = ACTIVE.tracer
    with run.again(storage.memory_of(words)):
        return op(*args, **kwargs)


BY_NAME: dict[str, Callable[..., Any]] = {
    "tag_activation_checkpoint": _checkpoint,
    "wrap_activation_checkpoint": _checkpoint,
    "wrap": _call,
    "strict_mode": lambda function, operands: function(*operands),
    "invoke_subgraph": _invoke,
    "wrap_with_set_grad_enabled": _with_grad,
    "wrap_with_autocast": _with_autocast,
    "hints_wrapper": _hints,
    "with_effects": _effects,
    "run_and_save_rng_state": _save_draw,
    "run_with_rng_state": _repeat_draw,
}
