"""The fused optimizer steps: lists of parameters, gradients and states in, their new values out.

A step's count has been raised already when the operator is called. With ``grad_scale`` gradients
are divided by it first, and returned so; where ``found_inf`` is 1 nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_jax.ops.pointwise import addcdiv, addcmul, lerp
from torch_jax.ops.promotion import convert, opmath
from torch_jax.ops.registry import op

Arrays = Sequence[jax.Array]


def _each(
    update: Callable[..., Sequence[jax.Array]],
    params: Arrays,
    grads: Arrays,
    states: Sequence[Arrays],
    steps: Arrays = (),
    *,
    grad_scale: Any = None,
    found_inf: Any = None,
    **settings: Any,
) -> list[list[jax.Array]]:
    """Apply ``update(param, grad, *states, step, **settings)`` at each position of the lists.

    ``update`` returns the new param and states; an empty list of states stays empty. All is
    computed in float32 at least.
    """
    columns: list[list[jax.Array]] = [[] for _ in range(2 + len(states))]
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        dtype = opmath(param.dtype)
        old = [param, grad, *(s[i] for s in states if len(s))]
        wide = [x.astype(dtype) for x in old]
        if grad_scale is not None:
            wide[1] = wide[1] / grad_scale.astype(dtype)
        step = (steps[i].astype(dtype),) if len(steps) else ()
        param, *rest = update(*wide, *step, **settings)
        new = [param, wide[1], *rest]
        if found_inf is not None:
            new = [jnp.where(found_inf == 1, a, b) for a, b in zip(old, new, strict=True)]
        filled = [columns[0], columns[1]]
        filled += [c for c, s in zip(columns[2:], states, strict=True) if len(s)]
        for column, a, b in zip(filled, old, new, strict=True):
            column.append(b.astype(a.dtype))
    return columns


def _bias_correction(beta, step):
    """Return ``1 - beta ** step``, exact in float32 for a beta near 1."""
    return -jnp.expm1(step * jnp.log(beta))


def _adam(decoupled: bool) -> Callable[..., list[list[jax.Array]]]:
    def update(param, grad, mean, square, *rest, lr, beta1, beta2, weight_decay, eps, maximize):
        *maximum, step = rest
        grad = -grad if maximize else grad
        if decoupled:
            param = param * (1 - lr * weight_decay)
        else:
            grad = grad + param * weight_decay
        mean = mean + (1 - beta1) * (grad - mean)
        square = beta2 * square + (1 - beta2) * grad * grad
        maximum = [jnp.maximum(m, square) for m in maximum]
        scale = jnp.sqrt((maximum or [square])[0]) / jnp.sqrt(_bias_correction(beta2, step))
        param = param - lr / _bias_correction(beta1, step) * mean / (scale + eps)
        return param, mean, square, *maximum

    def step_all(self, grads, means, squares, maxima, state_steps, *, amsgrad, **settings):
        states = means, squares, maxima if amsgrad else []
        new = _each(update, self, grads, states, state_steps, **settings)
        return new if amsgrad else [*new[:4], maxima]

    return step_all


@op("torch_jax::adam_", "torch_jax::adam_.counted", meta=False)
def adam_(params, grads, means, squares, maxima, sizes, corrections, decay, weight, beta2, share,
          eps, kind, maximize):  # fmt: skip
    """Step as ``torch.optim.Adam(foreach=True)``, in PyTorch's order of operators.

    Between two operators a value has the dtype of the parameter, as in PyTorch. ``weight`` is ``1 -
    beta1``, ``share`` is ``1 - beta2``, ``decay`` multiplies parameters or is added.
    ``sizes`` and ``corrections`` are numbers, or tensors of one.
    """

    @jax.jit  # traced and lowered once for all parameters of one shape
    def update(param, grad, mean, square, size, correction, *maximum):
        def rounded(value):
            return convert(value, param.dtype)

        grad = -grad if maximize else grad
        if kind == "decoupled":
            param = rounded(param * decay)
        elif kind == "gradient":
            grad = rounded(grad + decay * param)
        mean = rounded(lerp(mean, grad, weight))
        square = rounded(addcmul(rounded(square * beta2), grad, grad, value=share))
        largest = [jnp.maximum(one, square) for one in maximum]
        root = rounded(jnp.sqrt((largest or [square])[0]))
        root = rounded(rounded(root / correction) + eps)
        return rounded(addcdiv(param, mean, root, value=size)), mean, square, *largest

    lists = [params, grads, means, squares, sizes, corrections, *([maxima] if maxima else [])]
    new = [list(column) for column in zip(*map(update, *lists), strict=True)]
    return new if maxima else [*new, []]


op("_fused_adam", "_fused_adam.tensor_lr", meta=False)(_adam(decoupled=False))
op("_fused_adamw", "_fused_adamw.tensor_lr", meta=False)(_adam(decoupled=True))


def _sgd(
    param, grad, *buffer, lr, weight_decay, momentum, dampening, nesterov, maximize, is_first_step
):
    grad = -grad if maximize else grad
    grad = grad + param * weight_decay
    if not buffer:
        return (param - lr * grad,)
    velocity = grad if is_first_step else momentum * buffer[0] + (1 - dampening) * grad
    direction = grad + momentum * velocity if nesterov else velocity
    return param - lr * direction, velocity


@op("_fused_sgd", "_fused_sgd.tensor_lr", meta=False)
def fused_sgd(self, grads, momentum_buffer_list, **settings):
    """Set the momentum buffers in the first step, before which they are empty, or None."""
    return _each(_sgd, self, grads, (momentum_buffer_list,), **settings)


def _adagrad(param, grad, total, step, *, lr, lr_decay, weight_decay, eps, maximize):
    grad = -grad if maximize else grad
    grad = grad + param * weight_decay
    total = total + grad * grad
    rate = lr / (1 + (step - 1) * lr_decay)
    return param - rate * grad / (jnp.sqrt(total) + eps), total


@op("_fused_adagrad.tensor_lr", meta=False)
def fused_adagrad_tensor_lr(self, grads, state_sums, state_steps, **settings):
    """Step; the steps are not written."""
    return _each(_adagrad, self, grads, (state_sums,), state_steps, **settings)


@op("_fused_adagrad", meta=False)
def fused_adagrad(*lists, **settings):
    """Step; the schema writes the steps too, which do not change."""
    return [*fused_adagrad_tensor_lr(*lists, **settings), lists[3]]


# --- torch.amp.GradScaler -------------------------------------------------------------------------


@op("_amp_foreach_non_finite_check_and_unscale", meta=False)
def non_finite_check_and_unscale(self, found_inf, inv_scale):
    """Multiply gradients by ``inv_scale``; ``found_inf`` becomes 1 where one is not finite."""
    bad = found_inf != 0
    scaled = []
    for grad in self:
        bad = bad | ~jnp.all(jnp.isfinite(grad))
        wide = opmath(grad.dtype)
        scaled.append((grad.astype(wide) * inv_scale.astype(wide)).astype(grad.dtype))
    return scaled, jnp.where(bad, 1, found_inf).astype(found_inf.dtype)


@op("_amp_update_scale", meta=False)
def update_scale(
    self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval
):
    """Grow the scale after so many finite steps in a row, unless it would become infinite."""
    overflowed = found_inf != 0
    successes = growth_tracker + 1
    grows = successes == growth_interval
    grown = self * scale_growth_factor
    grown = jnp.where(grows & jnp.isfinite(grown), grown, self)
    scale = jnp.where(overflowed, self * scale_backoff_factor, grown)
    tracker = jnp.where(overflowed | grows, 0, successes)
    return scale.astype(self.dtype), tracker.astype(growth_tracker.dtype)
