"""The fused cells that ``nn.LSTM`` and ``nn.GRU`` run at each step, and their gradients.

``workspace`` carries the activated gates from the forward to the backward. The cells are written
for arrays and tensors alike: ``by`` names the functions that are called otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op

_JAX = SimpleNamespace(split=jnp.split, join=jnp.concatenate, sigmoid=jax.nn.sigmoid, tanh=jnp.tanh)


def _plus(x, bias):
    return x if bias is None else x + bias


def lstm_cell(by, input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """Return new hidden and cell state; the gates are input, forget, cell and output."""
    gates = _plus(_plus(input_gates + hidden_gates, input_bias), hidden_bias)
    i, f, g, o = by.split(gates, 4, 1)
    i, f, g, o = by.sigmoid(i), by.sigmoid(f), by.tanh(g), by.sigmoid(o)
    c = f * cx + i * g
    return o * by.tanh(c), c, by.join([i, f, g, o], 1)


def lstm_cell_backward(by, grad_hy, grad_cy, cx, cy, workspace, has_bias):
    """Return gradients of the gates, of the cell state and of the bias."""
    i, f, g, o = by.split(workspace, 4, 1)
    t = by.tanh(cy)
    grad_h = t * 0 if grad_hy is None else grad_hy
    total = _plus(grad_h * o * (1 - t * t), grad_cy)
    parts = [total * g * i * (1 - i), total * cx * f * (1 - f), total * i * (1 - g * g)]
    grad_gates = by.join([*parts, grad_h * t * o * (1 - o)], 1)
    return grad_gates, total * f, grad_gates.sum(0) if has_bias else None


def gru_cell(by, input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    """Return new hidden state; the gates are reset, update and new."""
    xr, xz, xn = by.split(_plus(input_gates, input_bias), 3, 1)
    hr, hz, hn = by.split(_plus(hidden_gates, hidden_bias), 3, 1)
    r, z = by.sigmoid(xr + hr), by.sigmoid(xz + hz)
    n = by.tanh(xn + r * hn)
    return n + z * (hx - n), by.join([r, z, n, hx, hn], 1)


def gru_cell_backward(by, grad_hy, workspace, has_bias):
    """Return gradients of both gates, of the hidden state and of both biases."""
    r, z, n, h, hn = by.split(workspace, 5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * hn * r * (1 - r)
    grad_z = grad_hy * (h - n) * z * (1 - z)
    grad_x, grad_hidden = (by.join([grad_r, grad_z, new], 1) for new in (grad_n, grad_n * r))
    biases = (grad_x.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_x, grad_hidden, grad_hy * z, *biases


CELLS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
}


def _enter(name: str, cell: Callable[..., Any]) -> None:
    """Enter a cell, which is computed in float32 for half types."""

    # PyTorch's meta functions fail without biases, or say no dtypes
    @op(name, meta=False)
    def lowering(*args):
        dtype = next(x.dtype for x in args if x is not None)
        wide = [x.astype(opmath(dtype)) if isinstance(x, jax.Array) else x for x in args]
        return [None if x is None else x.astype(dtype) for x in cell(_JAX, *wide)]


for _name, _cell in CELLS.items():
    _enter(_name, _cell)
