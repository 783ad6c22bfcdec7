"""Routes the gradient of ``F.cross_entropy`` to one operator.

PyTorch composes the loss of a log-softmax and a choice, so that an array of the logits' size, zero
but for one element of each row, is made, summed and subtracted: of a large vocabulary that takes
longer than the softmax. The gradient of both together is ``(softmax - choice) * weight``. The
route is taken above autograd, as for attention (:mod:`torch_jax.dispatch.attention_choice`); calls
of another kind (probabilities as targets, smoothed labels, tangents, ``vmap``) go PyTorch's way.

Semantics: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html
"""

from __future__ import annotations

from typing import Any

import torch

from torch_jax._private import functorch
from torch_jax.memory.shared import is_here
from torch_jax.memory.storage import PLAIN_TENSORS, is_jax

_aten = torch.ops.aten
_CHOOSE = {2: _aten.nll_loss_forward, 4: _aten.nll_loss2d_forward}  # by the dims of the logits


def cross_entropy(
    self, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0
) -> torch.Tensor:
    """Return the loss of logits ``[batch, classes, ...]`` for classes ``[batch, ...]``."""
    if torch.is_autocast_enabled(self.device.type):  # as a log-softmax and a choice are cast
        self, weight = (t if t is None or t.itemsize >= 4 else t.float() for t in (self, weight))
    if label_smoothing or not _is_taken(self, target, weight):
        composed, given = _aten.cross_entropy_loss.default.decompose, (self, target, weight)
        is_mean = label_smoothing and reduction == 1 and target.shape != self.shape
        if is_mean and weight is not None and not is_here():
            loss = composed(*given, 2, ignore_index, label_smoothing)
            return loss / _total(target, weight, ignore_index)
        return composed(*given, reduction, ignore_index, label_smoothing)
    return _CrossEntropy.apply(self, target, weight, reduction, ignore_index)[0]


def _total(target: torch.Tensor, weight: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Return the weight of all classes that count; PyTorch selects them, which needs values."""
    ignored = target == ignore_index
    each = weight.gather(0, target.masked_fill(ignored, 0).flatten())
    return each.masked_fill(ignored.flatten(), 0).sum()


def _is_taken(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None) -> bool:
    if not (x.requires_grad and torch.is_grad_enabled() and x.dim() in _CHOOSE and x.numel()):
        return False
    if functorch.forward_mode() or functorch.transforms_active():
        return False
    tensors = [t for t in (x, target, weight) if t is not None]
    plain = all(type(t) in PLAIN_TENSORS and is_jax(t) for t in tensors)
    classes = target.dtype == torch.int64 and target.shape == (x.shape[0], *x.shape[2:])
    weighted = weight is not None and (weight.requires_grad or weight.dtype != x.dtype)
    return plain and classes and not weighted


class _CrossEntropy(torch.autograd.Function):
    """The loss, and the log-softmax, by which the gradient has a gradient."""

    @staticmethod
    def forward(context, x, target, weight, *how):
        context.set_materialize_grads(False)
        y = _aten._log_softmax(x, 1, False)
        loss, total = _CHOOSE[x.dim()](y, target, weight, *how)
        context.save_for_backward(y, target, weight, total)
        context.how = how
        return loss, y

    @staticmethod
    def backward(context, grad, grad_y):
        y, target, weight, total = context.saved_tensors
        found: Any = None
        if grad is not None and torch.is_grad_enabled():
            found = _by_definition(grad, y, target, weight, total, *context.how)
        elif grad is not None:
            given = (grad, y, target, weight, total, *context.how)
            found = torch.ops.torch_jax.cross_entropy_backward(*given)
        if grad_y is not None:
            through = _aten._log_softmax_backward_data(grad_y, y, 1, y.dtype)
            found = through if found is None else found + through
        return found, None, None, None, None


def _by_definition(grad, y, target, weight, total, reduction, ignore_index) -> torch.Tensor:
    """Return the gradient by operators that have gradients."""
    used = target != ignore_index
    scale = used.to(y.dtype) if weight is None else used * weight[target.where(used, 0)]
    grad = grad / total if reduction == 1 else grad
    chosen = torch.nn.functional.one_hot(target.where(used, 0), y.shape[1]).movedim(-1, 1)
    return (y.exp() - chosen) * (grad * scale).unsqueeze(1)
