"""Connectionist temporal classification: the forward-backward algorithm in log space.

Lengths reach the operator as Python integers, and change with every batch. So it runs outside the
executor's ``jit`` and calls a function of its own, which takes them as arrays: only another number
of steps or labels compiles again.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax.ops.derivatives import differentiated_as
from torch_jax.ops.on_host import on_host
from torch_jax.ops.registry import op

_INSTEAD = "give the lengths as Python lists, or compute the loss outside"


def _padded(targets, lengths, longest, blank):
    """Return the labels (N, S), given so or one after another; ``blank`` fills the rest."""
    where = jnp.arange(longest)
    if targets.ndim == 1:
        start = jnp.cumsum(lengths) - lengths
        labels = jnp.take(targets, start[:, None] + where, mode="clip")
    else:
        labels = targets[:, :longest]
    return jnp.where(where < lengths[:, None], labels.astype(jnp.int64), blank)


def _states(labels, blank):
    """Return the labels with blanks between (N, 2S+1), and flags of blanks that can be skipped."""
    count, longest = labels.shape
    states = jnp.full((count, 2 * longest + 1), blank, labels.dtype).at[:, 1::2].set(labels)
    before = jnp.pad(states, ((0, 0), (2, 0)), constant_values=-1)[:, :-2]
    return states, (states != blank) & (states != before) & (jnp.arange(2 * longest + 1) >= 2)


def _step(alpha, emitted, jumps):
    """Enter each state from itself, from the one before, or from the one before that."""
    pad = functools.partial(jnp.pad, constant_values=-jnp.inf)
    stay = jnp.logaddexp(alpha, pad(alpha, ((0, 0), (1, 0)))[:, :-1])
    jump = jnp.where(jumps, pad(alpha, ((0, 0), (2, 0)))[:, :-2], -jnp.inf)
    return jnp.logaddexp(stay, jump) + emitted


def _emissions(log_probs, states):
    """Return (T, N, 2S+1): the log probability of each state's label at each step."""
    return jnp.take_along_axis(log_probs, states[None], axis=2)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _forward(log_probs, targets, input_lengths, target_lengths, longest, blank):
    states, jumps = _states(_padded(targets, target_lengths, longest, blank), blank)
    emitted = _emissions(log_probs, states)
    first = jnp.where(jnp.arange(states.shape[1]) < 2, emitted[0], -jnp.inf)

    def step(alpha, now):
        alpha = _step(alpha, now, jumps)
        return alpha, alpha

    _, rest = jax.lax.scan(step, first, emitted[1:])
    alpha = jnp.concatenate([first[None], rest])
    last = jnp.maximum(input_lengths - 1, 0)
    final = alpha[last, jnp.arange(len(last))]

    def at(state):
        return jnp.take_along_axis(final, state[:, None], axis=1)[:, 0]

    end = 2 * target_lengths
    label = jnp.where(target_lengths > 0, at(jnp.maximum(end - 1, 0)), -jnp.inf)
    loss = -jnp.logaddexp(at(end), label)
    empty = jnp.where(target_lengths == 0, 0.0, jnp.inf)
    loss = jnp.where(input_lengths == 0, empty, loss).astype(log_probs.dtype)
    return loss, jnp.moveaxis(alpha, 0, 1)


@functools.partial(jax.jit, static_argnums=(7, 8))
def _backward(
    grad, log_probs, targets, input_lengths, target_lengths, loss, alpha, blank, zero_infinity=False
):
    """Return the gradient of the log_softmax's input: probabilities less posteriors.

    PyTorch returns this, rather than the derivative by log_probs; log_softmax's own gradient does
    not change it.
    """
    steps, count, _ = log_probs.shape
    longest = alpha.shape[2] // 2
    states, jumps = _states(_padded(targets, target_lengths, longest, blank), blank)
    emitted = _emissions(log_probs, states)
    place = jnp.arange(states.shape[1])
    end = 2 * target_lengths[:, None]
    ends = (place == end) | ((place == end - 1) & (end > 0))

    def step(beta, now):
        """Step backwards in time: forwards with states reversed, from each last step."""
        emission, is_last = now
        jump = jnp.pad(jumps, ((0, 0), (0, 2)))[:, 2:]
        new = _step(beta[:, ::-1], emission[:, ::-1], jump[:, ::-1])[:, ::-1]
        new = jnp.where(is_last[:, None], jnp.where(ends, emission, -jnp.inf), new)
        return new, new

    is_last = jnp.arange(steps)[:, None] == input_lengths - 1
    start = jnp.full_like(emitted[0], -jnp.inf)
    _, beta = jax.lax.scan(step, start, (emitted, is_last), reverse=True)

    loss = loss[None, :, None]
    # the emission counts in alpha and in beta
    shared = jnp.moveaxis(alpha, 1, 0) + beta
    posterior = jnp.exp(shared - emitted + loss)
    posterior = jnp.where(shared == -jnp.inf, 0, posterior)
    summed = jnp.zeros_like(log_probs)
    summed = summed.at[:, jnp.arange(count)[:, None], states].add(posterior)
    impossible = loss == jnp.inf
    result = jnp.where(impossible, jnp.nan, jnp.exp(log_probs) - summed) * grad[None, :, None]
    if zero_infinity:
        result = jnp.where(impossible, 0, result)
    return jnp.where(jnp.arange(steps)[:, None, None] < input_lengths[:, None], result, 0)


def _lengths(*lengths):
    return [on_host(n).astype(np.int64).reshape(-1) for n in lengths]


def _by_posteriors(log_probs, targets, inputs, labels, blank=0, zero_infinity=False):
    fixed = jax.lax.stop_gradient(log_probs)
    loss, alpha = ctc_loss(fixed, targets, inputs, labels, blank)
    given = jnp.ones_like(loss), fixed, targets, inputs, labels, loss, alpha
    slopes = ctc_loss_backward(*given, blank, zero_infinity)
    return jnp.sum(slopes * log_probs, (0, 2)), alpha


@op("_ctc_loss", concrete=True, instead=_INSTEAD)
@differentiated_as(_by_posteriors)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """Return the loss and the forward variables (N, T, 2S+1), for the gradient."""
    if log_probs.size == 0:
        raise RuntimeError(f"ctc_loss: log_probs must not be empty, but is {log_probs.shape}")
    inputs, labels = _lengths(input_lengths, target_lengths)
    return _forward(log_probs, targets, inputs, labels, int(np.max(labels, initial=0)), blank)


@op("_ctc_loss_backward", concrete=True, meta=False, instead=_INSTEAD)
def ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths, *rest):
    return _backward(grad, log_probs, targets, *_lengths(input_lengths, target_lengths), *rest)


# the lengths are read, since the number of states is a shape
_OF_TENSORS: dict[str, Any] = {
    "concrete": True,
    "meta": False,
    "host": ("input_lengths", "target_lengths"),
}
op("_ctc_loss.Tensor", **_OF_TENSORS)(ctc_loss)
op("_ctc_loss_backward.Tensor", **_OF_TENSORS)(ctc_loss_backward)
