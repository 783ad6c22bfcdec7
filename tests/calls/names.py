"""Names in the expressions of calls, beside ``torch``, ``F`` and ``nn``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence


def names(leaves: list[torch.Tensor]) -> dict[str, Any]:
    """All names; parameters of modules that an expression makes are added to ``leaves``."""

    def module(name: str, options: dict[str, Any], *inputs: Any, train: bool = True, **named: Any):
        """What a module gives, and its buffers afterwards."""
        made = _module(name, options, inputs, train)
        leaves.extend(made.parameters())
        return made(*inputs, **named), dict(made.named_buffers())

    def packed(name: str, options: dict, x: torch.Tensor, lengths: list[int], hx=None, **kwargs):
        """A recurrent network on a packed sequence."""
        sequence = pack_padded_sequence(
            x, torch.tensor(lengths), batch_first=options.get("batch_first", False), **kwargs
        )
        made = _module(name, options, (x,), True)
        leaves.extend(made.parameters())
        output, state = made(sequence, hx)
        return _plain(output), state

    return {
        "torch": torch,
        "F": F,
        "nn": nn,
        "inf": math.inf,
        "nan": math.nan,
        "Ellipsis": Ellipsis,
        "getitem": getitem,
        "setitem": setitem,
        "anew": anew,
        "form": torch.zeros_like,
        "module": module,
        "packed": packed,
    }


def getitem(x: torch.Tensor, index: Any) -> torch.Tensor:
    """``x[index]``."""
    return x[index]


def setitem(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """A copy of ``x`` after ``x[index] = value``."""
    copy = x.clone()
    copy[index] = value
    return copy


def anew(method: str, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A copy of ``x`` after the in-place method."""
    return getattr(x.clone(), method)(*args, **kwargs)


def _module(name: str, options: dict[str, Any], inputs: tuple, train: bool) -> nn.Module:
    """A module whose weights are the same on each device, and in each dtype: few bits are set."""
    torch.manual_seed(0)
    made = getattr(nn, name)(**options).train(train)
    with torch.no_grad():
        for value in (*made.parameters(), *made.buffers()):
            if value.is_floating_point():
                value.copy_((value * 8).round() / 8)
    like = next(i for i in inputs if isinstance(i, torch.Tensor))
    dtype = like.dtype if like.is_floating_point() or like.is_complex() else torch.float32
    return made.to(like.device, dtype)


def _plain(sequence: PackedSequence) -> list[Any]:
    return [*sequence]
