"""Results held against what an operator is defined to give, in float64.

The CPU computes attention in several ways, of which each rounds differently. So the result on jax
must also be the sum that attention is defined to be.
"""

from __future__ import annotations

import ast

import torch

from tests.calls.call import Call
from tests.support.agreement import as_accurate

ATTENTION = "F.scaled_dot_product_attention"


def judge(
    call: Call,
    made: dict[str, torch.Tensor],
    actual: list[torch.Tensor],
    expected: list[torch.Tensor],
) -> None:
    """Raise ``AssertionError`` where an attention is none, by PyTorch's tolerances."""
    if not call.expression.startswith(ATTENTION) or call.within == "autocast":
        return
    true = attention(**_arguments(call, made)).to(expected[0].dtype)
    try:
        torch.testing.assert_close(actual[0].detach().cpu(), true, equal_nan=True)
    except AssertionError as error:
        if not as_accurate(actual[0], expected[0], attention(**_arguments(call, made))):
            raise AssertionError(f"not what attention is defined to be: {error}") from None


def _arguments(call: Call, made: dict[str, torch.Tensor]) -> dict:
    """The arguments by name: three tensors, then keywords, which are constants or tensors."""
    node = ast.parse(call.expression, mode="eval").body
    assert isinstance(node, ast.Call)
    found = dict(zip(("query", "key", "value"), node.args, strict=True))
    found |= {keyword.arg: keyword.value for keyword in node.keywords}
    return {
        name: made[value.id].detach() if isinstance(value, ast.Name) else ast.literal_eval(value)
        for name, value in found.items()
    }


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention in float64, by its definition; a query that may look nowhere gives zeros."""
    query, key, value = query.double(), key.double(), value.double()
    if not value.numel() or not query.shape[-2]:
        return query.new_zeros(*query.shape[:-1], value.shape[-1])
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scale = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.double()
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(blind, 0.0) @ value
