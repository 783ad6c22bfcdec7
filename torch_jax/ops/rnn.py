"""The fused cells that ``nn.LSTM`` and ``nn.GRU`` run at each step, and their gradients.

``workspace`` carries the activated gates from the forward to the backward.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op


def _wide(*arrays):
    return [None if x is None else x.astype(opmath(x.dtype)) for x in arrays]


def _plus(x, bias):
    return x if bias is None else x + bias


@op("_thnn_fused_lstm_cell", meta=False)  # PyTorch's meta function fails without biases
def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """Return new hidden and cell state; the gates are input, forget, cell and output."""
    gates, hidden, c, *biases = _wide(input_gates, hidden_gates, cx, input_bias, hidden_bias)
    gates = _plus(_plus(gates + hidden, biases[0]), biases[1])
    i, f, g, o = jnp.split(gates, 4, axis=1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c = f * c + i * g
    results = o * jnp.tanh(c), c, jnp.concatenate([i, f, g, o], 1)
    return [x.astype(cx.dtype) for x in results]


@op("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    """Return gradients of the gates, of the cell state and of the bias."""
    grad_h, grad_c, c, new_c, gates = _wide(grad_hy, grad_cy, cx, cy, workspace)
    i, f, g, o = jnp.split(gates, 4, axis=1)
    t = jnp.tanh(new_c)
    grad_h = jnp.zeros_like(t) if grad_h is None else grad_h
    total = _plus(grad_h * o * (1 - t * t), grad_c)
    grad_gates = jnp.concatenate(
        [
            total * g * i * (1 - i),
            total * c * f * (1 - f),
            total * i * (1 - g * g),
            grad_h * t * o * (1 - o),
        ],
        1,
    )
    return grad_gates, total * f, grad_gates.sum(0) if has_bias else None


@op("_thnn_fused_gru_cell")
def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    """Return new hidden state; the gates are reset, update and new."""
    dtype = hx.dtype
    x, hidden, h, *biases = _wide(input_gates, hidden_gates, hx, input_bias, hidden_bias)
    xr, xz, xn = jnp.split(_plus(x, biases[0]), 3, axis=1)
    hr, hz, hn = jnp.split(_plus(hidden, biases[1]), 3, axis=1)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * hn)
    workspace = jnp.concatenate([r, z, n, h, hn], 1)
    return (n + z * (h - n)).astype(dtype), workspace.astype(dtype)


@op("_thnn_fused_gru_cell_backward")
def gru_cell_backward(grad_hy, workspace, has_bias):
    """Return gradients of both gates, of the hidden state and of both biases."""
    dtype = grad_hy.dtype
    grad, workspace = _wide(grad_hy, workspace)
    r, z, n, h, hn = jnp.split(workspace, 5, axis=1)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r = grad_n * hn * r * (1 - r)
    grad_z = grad * (h - n) * z * (1 - z)
    grad_x = jnp.concatenate([grad_r, grad_z, grad_n], 1)
    grad_hidden = jnp.concatenate([grad_r, grad_z, grad_n * r], 1)
    grads = [grad_x, grad_hidden, grad * z]
    grads += [grad_x.sum(0), grad_hidden.sum(0)] if has_bias else []
    # PyTorch has no meta function that says dtypes
    return [g.astype(dtype) for g in grads] + [None] * (5 - len(grads))
