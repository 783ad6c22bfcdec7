"""Results compared with an operator's definition, in float64.

The CPU computes attention in several ways, of which each rounds differently. So the result on jax
must also be the sum that attention is defined to be.
"""

from __future__ import annotations

import ast

import torch

from tests.calls.call import Call
from tests.support.agreement import as_accurate
from tests.support.defined import attention

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
