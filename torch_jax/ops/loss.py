"""Loss functions and their gradients. ``reduction`` is 0 for none, 1 for the mean, 2 for the sum.

Half types are computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from torch_jax.ops.activation import relu
from torch_jax.ops.derivatives import slope
from torch_jax.ops.pointwise import wide
from torch_jax.ops.promotion import opmath, result_type
from torch_jax.ops.registry import InOrder, op

NONE, MEAN, SUM = range(3)


def _reduce(loss: jax.Array, reduction: int) -> jax.Array:
    if reduction == MEAN:
        return jnp.mean(loss)
    return jnp.sum(loss) if reduction == SUM else loss


def _spread(grad: Any, loss_size: int, reduction: int) -> Any:
    """Return the gradient of each element's loss, given that of the reduced loss."""
    return grad / max(loss_size, 1) if reduction == MEAN else grad


# Elementwise losses of (self, target), and their derivatives with respect to self.


def _of_difference(name: str, loss: Any, slope: Any) -> None:
    """Enter a loss of ``self - target`` and its gradient; ``slope`` is the derivative."""

    @op(name)
    def forward(self, target, reduction=MEAN, *limit):
        a, b = wide(self, target)
        return _reduce(loss(a - b, *limit), reduction)

    @op(f"{name}_backward", meta=False)  # PyTorch's divide by the number of elements, or zero
    def backward(grad_output, self, target, reduction, *limit):
        g, a, b = wide(grad_output, self, target)
        x = a - b
        grad = _spread(g, x.size, reduction) * slope(x, *limit)
        return grad.astype(result_type(grad_output, self, target))


def _smooth_l1_slope(x, beta=1.0):
    inside = jnp.where(beta == 0, jnp.sign(x), x / beta)
    return jnp.where(jnp.abs(x) >= beta, jnp.sign(x), inside)


@slope(_smooth_l1_slope)
def _smooth_l1(x, beta=1.0):
    z = jnp.abs(x)
    return jnp.where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta)


def _huber(x, delta=1.0):
    z = jnp.abs(x)
    return jnp.where(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta))


_of_difference("mse_loss", jnp.square, lambda x: 2 * x)
_of_difference("smooth_l1_loss", _smooth_l1, _smooth_l1_slope)
_of_difference("huber_loss", _huber, lambda x, d: jnp.clip(x, -d, d))


def _is_probability(self):
    ok = (self >= 0) & (self <= 1)
    return jnp.all(ok), "all elements of input should be between 0 and 1", RuntimeError


@op("binary_cross_entropy", check=_is_probability, strided=("self",))
def binary_cross_entropy(self, target, weight=None, reduction=MEAN, *, self_strides):
    """Bound logarithms below by -100."""
    x, y, w = wide(self, target, weight)
    loss = _cross_entropy(x, y)
    loss = loss if w is None else loss * jnp.broadcast_to(w, loss.shape)
    order = sorted(range(loss.ndim), key=lambda dim: -self_strides[dim])
    return InOrder(loss, tuple(order)) if reduction == NONE else _reduce(loss, reduction)


def _cross_entropy_slope(x, y):
    return (x - y) / jnp.maximum((1 - x) * x, 1e-12)


@slope(_cross_entropy_slope, lambda x, y: jnp.log1p(-x) - jnp.log(x))
def _cross_entropy(x, y):
    return (y - 1) * jnp.maximum(jnp.log1p(-x), -100) - y * jnp.maximum(jnp.log(x), -100)


@op("binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad_output, self, target, weight=None, reduction=MEAN):
    g, x, y, w = wide(grad_output, self, target, weight)
    slope = _cross_entropy_slope(x, y)
    return _spread(g, x.size, reduction) * (slope if w is None else slope * w)


@op("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(self, target, weight=None, pos_weight=None, reduction=MEAN):
    x, y, w, pos = wide(self, target, weight, pos_weight)
    scale = 1 if pos is None else (pos - 1) * y + 1
    loss = (1 - y) * x - scale * jax.nn.log_sigmoid(x)
    return _reduce(loss if w is None else loss * w, reduction)


# Negative log likelihood. The class axis is 1 where there is a batch, else 0.


def _target_in_range(self, target, ignore_index):
    classes = self.shape[_class_axis(self)]
    ok = (target == ignore_index) | ((target >= 0) & (target < classes))
    return jnp.all(ok), f"Target is out of bounds: it must be from 0 to {classes - 1}."


def _class_axis(x: jax.Array) -> int:
    return min(x.ndim - 1, 1)


def _refuse(self, target, weight) -> None:
    """Raise the CPU's errors; PyTorch's meta function takes no bytes as targets."""
    axis = _class_axis(self)
    of_weight = self.shape[axis : axis + 1], self.dtype
    samples = self.shape[:axis] + self.shape[axis + 1 :]
    if (
        self.ndim == 0
        or target.shape not in ((samples,) if samples else ((), (1,)))
        or target.dtype not in (jnp.int64, jnp.uint8)
        or (weight is not None and (weight.shape, weight.dtype) != of_weight)
    ):
        raise ValueError(f"a target of {target.shape} and {target.dtype} for {self.shape}")


def _nll_weights(self, target, weight, ignore_index) -> tuple[jax.Array, jax.Array]:
    """Return the class of each sample, and its weight, zero where it is to be ignored."""
    target = target.astype(jnp.int64)
    dtype = opmath(self.dtype)
    used = target != ignore_index
    index = jnp.where(used, target, 0)
    if weight is None:
        return index, used.astype(dtype)
    return index, jnp.where(used, weight.astype(dtype)[index], 0)


# PyTorch's meta functions refuse targets of uint8, which the CPU takes.
@op("nll_loss_forward", "nll_loss2d_forward", check=_target_in_range, meta=False)
def nll_loss_forward(self, target, weight, reduction, ignore_index):
    """Return the loss and the sum of the weights; the sum is zero where nothing is reduced."""
    _refuse(self, target, weight)
    axis = _class_axis(self)
    index, w = _nll_weights(self, target, weight, ignore_index)
    picked = jnp.take_along_axis(self, jnp.expand_dims(index, axis), axis, mode="clip")
    # where: an ignored class may have an infinite loss
    loss = jnp.where(w == 0, 0, -picked.squeeze(axis).astype(w.dtype) * w)
    if reduction == NONE and self.ndim > 1:
        return loss.astype(self.dtype), jnp.zeros((), self.dtype)
    total = jnp.sum(w)
    loss = jnp.sum(loss) / total if reduction == MEAN else jnp.sum(loss)
    return loss.astype(self.dtype), total.astype(self.dtype)


@op("nll_loss_backward", "nll_loss2d_backward", meta=False)
def nll_loss_backward(grad_output, self, *given):
    hit, used, grad = _chosen(grad_output, self, *given)
    return jnp.where(hit & used, -grad, 0).astype(self.dtype)


def _chosen(grad_output, self, target, weight, reduction, ignore_index, total_weight):
    """Return which classes are chosen, which samples count, and the gradients of their losses."""
    axis = _class_axis(self)
    index, w = _nll_weights(self, target, weight, ignore_index)
    grad = grad_output.astype(w.dtype)
    if reduction == MEAN:
        grad = grad / total_weight.astype(w.dtype)
    classes = jax.lax.broadcasted_iota(index.dtype, self.shape, axis)
    found = classes == jnp.expand_dims(index, axis)
    return found, jnp.expand_dims(w != 0, axis), jnp.expand_dims(grad * w, axis)


@op("torch_jax::cross_entropy_backward", meta=False)
def cross_entropy_backward(
    grad, log_softmax, target, weight, total_weight, reduction, ignore_index
):
    """Return the gradient of the logits ``[batch, classes, ...]``: softmax less one, weighted."""
    given = log_softmax, target, weight, reduction, ignore_index, total_weight
    hit, used, grad = _chosen(grad, *given)
    found = (jnp.exp(log_softmax.astype(grad.dtype)) - hit) * grad
    # a class that is ignored may have an infinite loss
    return jnp.where(used, found, 0).astype(log_softmax.dtype)


# Margins between classes. Every pair is compared, one array (N, C, C) or (N, C) that XLA fuses.


def _batched(x: jax.Array) -> jax.Array:
    return x.reshape(1, -1) if x.ndim < 2 else x


def _names_a_class(self, target):
    ok = (target >= 0) & (target < _batched(self).shape[1])
    return jnp.all(ok), "target out of range", RuntimeError


# PyTorch's meta function gives one sample's loss a dimension
@op("multi_margin_loss", static=("p",), check=_names_a_class, meta=False)
def multi_margin_loss(self, target, p=1, margin=1, weight=None, reduction=MEAN):
    x, index = _batched(self.astype(opmath(self.dtype))), target.reshape(-1, 1)
    z = margin - jnp.take_along_axis(x, index, 1) + x
    z = jnp.where(z > 0, z, 0)
    z = z if p == 1 else z * z
    if weight is not None:
        z = z * weight.reshape(x.shape[1]).astype(z.dtype)[index]
    other = jnp.arange(x.shape[1]) != index
    loss = jnp.sum(jnp.where(other, z, 0), axis=1) / x.shape[1]
    return _reduce(loss.reshape(target.shape), reduction).astype(self.dtype)


@op("multi_margin_loss_backward", static=("p",), meta=False)
def multi_margin_loss_backward(grad_output, self, target, *options, **named):
    return _pull_back(lambda x: multi_margin_loss(x, target, *options, **named), self, grad_output)


def _pull_back(loss, self, grad_output):
    out, pull = jax.vjp(loss, self.astype(opmath(self.dtype)))
    grad = pull(jnp.broadcast_to(grad_output, out.shape).astype(out.dtype))[0]
    return grad.astype(self.dtype)


def _label_sets(target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return which of ``target`` (N, C) are before the first -1, and which classes they name."""
    listed = jnp.cumsum(target < 0, axis=1) == 0
    classes = jnp.arange(target.shape[1])
    return listed, jnp.any((target[:, :, None] == classes) & listed[:, :, None], axis=1)


def _lists_classes(self, target):
    ok = (target >= -1) & (target < _batched(self).shape[1])
    return jnp.all(ok), "target is out of range", RuntimeError


@op("multilabel_margin_loss_forward", check=_lists_classes, meta=False)  # as above
def multilabel_margin_loss_forward(self, target, reduction):
    x, labels = _batched(self.astype(opmath(self.dtype))), _batched(target)
    listed, is_target = _label_sets(labels)
    picked = jnp.take_along_axis(x, jnp.where(listed, labels, 0), 1)
    z = relu(1 - picked[:, :, None] + x[:, None, :])
    counted = listed[:, :, None] & ~is_target[:, None, :]
    loss = jnp.sum(jnp.where(counted, z, 0), axis=(1, 2)) / max(x.shape[1], 1)
    loss = loss if self.ndim > 1 else loss[0]
    loss = _reduce(loss, reduction).astype(self.dtype)
    return loss, is_target.reshape(target.shape).astype(self.dtype)


@op("multilabel_margin_loss_backward", meta=False)
def multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    def loss(x):
        return multilabel_margin_loss_forward(x, target, reduction)[0]

    return _pull_back(loss, self, grad_output)
