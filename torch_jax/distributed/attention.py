"""``DTensor``: the splits of the device's fused attention over processes.

PyTorch knows those of its own devices' operators only. Attention is split by batch or by heads; the
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
_PLACEMENTS: list[Any] = [Replicate(), Shard(0), Shard(1)]  # whole, by batch, by heads
_Shardings = list[tuple[list[Any], list[Any]]]


def register() -> Callable[[], None]:
    """Register the splits with ``DTensor``; return the function that undoes this."""
    register_sharding(_FORWARD)(_forward)
    register_sharding(_BACKWARD)(_backward)
    known = DTensor._op_dispatcher.sharding_propagator

    def undo() -> None:
        for op in (_FORWARD, _BACKWARD):
            known.op_strategy_funcs.pop(op, None)

    return undo


def _of_bias(bias: Any, placement: Any) -> Any:
    """Return the placement of the bias for that of query, key and value: whole if broadcast."""
    if bias is None:
        return None
    at = getattr(placement, "dim", None)
    split = at is not None and len(bias.shape) == 4 and bias.shape[at] > 1
    return placement if split else Replicate()


def _forward(
    query: Any, key: Any, value: Any, bias: Any = None, *rest: Any, **_scale: Any
) -> _Shardings:
    """Return placements; of nine results, only output and logsumexp are more than a number."""
    return [
        ([at, at, *[None] * 7], [at, at, at, _of_bias(bias, at), *(None for _ in rest)])
        for at in _PLACEMENTS
    ]


def _backward(
    grad: Any, query: Any, key: Any, value: Any, bias: Any, *rest: Any, **_scale: Any
) -> _Shardings:
    """Return placements: each part gives its own gradient; a broadcast bias gets their sum.

    Of the rest, the second and third are output and logsumexp, the last two seed and offset.
    """
    whole, numbers = Replicate(), [None] * (len(rest) - 5)
    found = []
    for at in _PLACEMENTS:
        of_bias = _of_bias(bias, at)
        of_sum = Partial() if of_bias is not None and of_bias != at else of_bias
        inputs = [at, at, at, at, of_bias, None, at, at, *numbers, whole, whole]
        found.append(([at, at, at, of_sum], inputs))
    return found
