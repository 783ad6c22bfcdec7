"""``DTensor``: how fused attention of the device may be split over processes.

PyTorch knows it of its own devices' operators only. Attention is split by batch or by heads; the
rest of a sequence is needed everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

_FORWARD = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
_BACKWARD = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default
_BATCH, _HEADS = 0, 1
_Shardings = list[tuple[list[Any], list[Any]]]


def register() -> Callable[[], None]:
    """Tell ``DTensor``; returns what takes that back."""
    register_sharding(_FORWARD)(_forward)
    register_sharding(_BACKWARD)(_backward)
    known = DTensor._op_dispatcher.sharding_propagator

    def undo() -> None:
        for op in (_FORWARD, _BACKWARD):
            known.op_strategy_funcs.pop(op, None)

    return undo


def _placements() -> list[Any]:
    return [Replicate(), Shard(_BATCH), Shard(_HEADS)]


def _of_bias(bias: Any, placement: Any) -> Any:
    """How the bias lies where query, key and value lie so: whole where it is broadcast."""
    if bias is None:
        return None
    at = getattr(placement, "dim", None)
    split = at is not None and len(bias.shape) == 4 and bias.shape[at] > 1
    return placement if split else Replicate()


def _forward(
    query: Any, key: Any, value: Any, bias: Any = None, *rest: Any, **_scale: Any
) -> _Shardings:
    """Of the nine results, output and logsumexp are more than a number."""
    nothing: list[Any] = [None] * 7
    found = []
    for at in _placements():
        found.append(([at, at, *nothing], [at, at, at, _of_bias(bias, at), *(None for _ in rest)]))
    return found


def _backward(
    grad: Any, query: Any, key: Any, value: Any, bias: Any, *rest: Any, **_scale: Any
) -> _Shardings:
    """Each part gives the gradient of its part; that of a bias that is broadcast is their sum.

    Of the rest, the second and third are output and logsumexp, the last two seed and offset.
    """
    whole, numbers = Replicate(), [None] * (len(rest) - 5)
    found = []
    for at in _placements():
        of_bias = _of_bias(bias, at)
        of_sum = Partial() if of_bias is not None and of_bias != at else of_bias
        inputs = [at, at, at, at, of_bias, None, at, at, *numbers, whole, whole]
        found.append(([at, at, at, of_sum], inputs))
    return found
