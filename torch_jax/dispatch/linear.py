"""Routes linear layers to one operator, and their gradients to one, where PyTorch composes several.

PyTorch composes ``linear`` above autograd: of views, a transpose and a product, with a gradient for
each. PyTorch has a gradient of the whole, too, for devices with a kernel of the whole. A training
step of a small GPT then is a third of the operators, and takes two thirds of Python's time. The
route is taken above autograd, as for attention (:mod:`torch_jax.dispatch.attention_choice`). Calls
of another kind go PyTorch's way: where only one of input and weight has a gradient, since the whole
would keep both; tangents and gradients of complex numbers, which PyTorch has not for the whole;
what a transform of ``torch.func`` wraps, as the whole would not unwrap it; sparse weights; and what
subclasses and ``TorchDispatchMode`` are to see in parts, as elsewhere.

Semantics: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.linear.html
"""

from __future__ import annotations

import torch

from torch_jax._private import functorch, pytorch
from torch_jax.memory.storage import PLAIN_TENSORS

_op = torch.ops.aten.linear.default


def linear(input, weight, bias=None) -> torch.Tensor:
    """Return ``input @ weight.T + bias``, of features in the last dimension."""
    keys = pytorch.keys_of_own_gradient() if _is_taken(input, weight, bias) else None
    if keys is None:
        return _op.decompose(input, weight, bias)
    return _op.redispatch(keys, input, weight, bias)


def _is_taken(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    dtype = x.dtype
    return (
        (_have_gradient(x, weight, bias) if torch.is_grad_enabled() else x.dim() > 0)
        and type(x) in PLAIN_TENSORS
        and type(weight) in PLAIN_TENSORS
        and weight.dim() == 2
        and weight.dtype is dtype
        and dtype.is_floating_point
        and x.layout is weight.layout is torch.strided
        and (bias is None or _fits(bias, weight))
        and not (x.is_neg() or weight.is_neg())
        and not (functorch.forward_mode() or functorch.transforms_active())
    )


def _have_gradient(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Return whether input and weight both have gradients, or nothing has; and there are rows."""
    either = weight.requires_grad
    are_alike = x.requires_grad is either and (either or bias is None or not bias.requires_grad)
    return are_alike and x.dim() > 1


def _fits(bias: torch.Tensor, weight: torch.Tensor) -> bool:
    is_plain = type(bias) in PLAIN_TENSORS and bias.dtype is weight.dtype and not bias.is_neg()
    return is_plain and bias.dim() == 1 and len(bias) == len(weight)
