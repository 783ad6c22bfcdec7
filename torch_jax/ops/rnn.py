"""Recurrent layers, each one operator, and the fused cells of ``nn.LSTMCell`` and ``nn.GRUCell``.

A layer multiplies all inputs by its weights at once, then takes step after step in one loop, so
that a program has one step, however long the sequence. The gradient knows all hidden states, so it
computes the gates of all steps at once again, and nothing is kept for it.

The functions are written for arrays and tensors alike: ``by`` names those that are called
otherwise. ``workspace`` has the activated gates of a cell.

Semantics: https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax.ops.matmul import dot
from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op


def _plus(x, bias):
    return x if bias is None else x + bias


# --- cells ----------------------------------------------------------------------------------------


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


# --- a step of a layer, by its kind ---------------------------------------------------------------


class Kind(NamedTuple):
    """The functions of a kind of layer."""

    gates: int  # how many vectors of the hidden size a step computes
    # Returns the hidden and the cell state, given the gates of the input, those of the hidden
    # state, and both states. Layers other than LSTMs have None for the cell state.
    step: Callable[..., Any]
    # Returns what ``back`` needs of each step, ``[time, batch, size]``, given the gates of all
    # steps, the hidden states before and after each, the first cell state, and a function that runs
    # over time.
    keep: Callable[..., Any]
    # Returns gradients of both gates, the part of the hidden state's gradient that is not by its
    # gates, and the cell state's gradient, given those of the new states, and what was kept.
    back: Callable[..., Any]


def _lstm_keep(by, input_gates, hidden_gates, before, after, cx, over_time):
    i, f, g, o = by.split(input_gates + hidden_gates, 4, 2)
    i, f, g, o = by.sigmoid(i), by.sigmoid(f), by.tanh(g), by.sigmoid(o)

    def step(states, forget, new):
        (cell,) = states
        return (forget * cell + new,), states

    _, (cells,) = over_time(step, (cx,), (f, i * g))
    return by.join([i, f, g, o], 2), cells


def _lstm_back(by, grad_h, grad_c, workspace, cx):
    i, f, g, _ = by.split(workspace, 4, 1)
    gates, grad_c, _ = lstm_cell_backward(by, grad_h, grad_c, cx, f * cx + i * g, workspace, False)
    return gates, gates, 0, grad_c


def _gru_keep(by, input_gates, hidden_gates, before, after, cx, over_time):
    workspace = gru_cell(by, *map(_rows, (input_gates, hidden_gates, before)))[1]
    return (workspace.reshape(*before.shape[:2], -1),)


def _gru_back(by, grad_h, grad_c, workspace):
    return *gru_cell_backward(by, grad_h, workspace, False)[:3], grad_c


def _of_sum(name: str, of_gates: Callable[..., Any]) -> Kind:
    """Return the kind whose hidden state is a function of both gates' sum, given its gradient."""

    def step(by, input_gates, hidden_gates, hx, cx):
        return getattr(by, name)(input_gates + hidden_gates), cx

    def keep(by, input_gates, hidden_gates, before, after, cx, over_time):
        return (after,)

    def back(by, grad_h, grad_c, after):
        gates = of_gates(by, grad_h, after)
        return gates, gates, 0, grad_c

    return Kind(1, step, keep, back)


KINDS = {
    "lstm": Kind(4, lambda by, x, h, hx, cx: lstm_cell(by, x, h, cx)[:2], _lstm_keep, _lstm_back),
    "gru": Kind(3, lambda by, x, h, hx, cx: (gru_cell(by, x, h, hx)[0], cx), _gru_keep, _gru_back),
    "rnn_tanh": _of_sum("tanh", lambda by, grad, y: grad * (1 - y * y)),
    "rnn_relu": _of_sum("relu", lambda by, grad, y: by.where(y > 0, grad, 0)),
}


# --- layers ---------------------------------------------------------------------------------------


def layer(by, input, hx, cx, w_ih, w_hh, b_ih, b_hh, lengths, kind, reverse):
    """Return hidden states of one direction, ``[time, batch, hidden]``, and the last cell state."""
    turned = by.transposed(w_hh)

    def step(states, gates):
        hidden_gates = _plus(by.product(states[0], turned), b_hh)
        return KINDS[kind].step(by, gates, hidden_gates, *states), ()

    gates = _plus(by.product(input, w_ih.T), b_ih)
    run = _over_time(by, input, lengths, reverse)
    (_, cell), (output,) = run(step, (hx, cx), (gates,))
    return output, cell


def layer_backward(
    by, grad, grad_cell, output, input, hx, cx, w_ih, w_hh, b_ih, b_hh, lengths, kind, reverse
):  # fmt: skip
    """Return gradients of the input, both states, both weights and both biases.

    Past the length of a sequence ``grad`` is zero.
    """
    first = hx[None]
    before = by.join([output[1:], first] if reverse else [first, output[:-1]], 0)
    gates = _plus(by.product(input, w_ih.T), b_ih), _plus(by.product(before, w_hh.T), b_hh)
    run = _over_time(by, input, lengths, reverse)
    kept = KINDS[kind].keep(by, *gates, before, output, cx, run)

    def step(grads, grad, *kept):
        *of_gates, direct, grad_c = KINDS[kind].back(by, grads[0] + grad, grads[1], *kept)
        return (by.product(of_gates[1], w_hh) + direct, grad_c), of_gates

    back = _over_time(by, input, lengths, not reverse)
    (grad_hx, grad_cx), of_gates = back(step, (by.zeros_like(hx), grad_cell), (grad, *kept))
    pairs = zip(of_gates, (input, before), strict=True)
    weights = (by.product(_rows(gates).T, _rows(of)) for gates, of in pairs)
    biases = (gates.sum((0, 1)) for gates in of_gates)
    return by.product(of_gates[0], w_ih), grad_hx, grad_cx, *weights, *biases


def _over_time(by, input, lengths, reverse):
    """Return a function that runs a step over time; a result of nothing is the first new state.

    Past the length of a sequence its states stay, and results are zero.
    """
    at = None if lengths is None else by.arange(input.shape[0], lengths)[:, None, None]
    within = () if at is None else (at < lengths[:, None],)

    def run(step, states, xs):
        def masked(states, *given):
            here, given = given[: len(within)], given[len(within) :]
            new, results = step(states, *given)
            for mask in here:
                pairs = zip(new, states, strict=True)
                new = [None if a is None else by.where(mask, a, b) for a, b in pairs]
                results = [by.where(mask, one, 0) for one in results]
            return tuple(new), tuple(results) or (new[0],)

        return by.loop(masked, states, (*within, *xs), reverse)

    return run


def _rows(x):
    return x.reshape(-1, x.shape[-1])


# --- the table ------------------------------------------------------------------------------------


def _scan(step, states, xs, reverse):
    """Run a step over the first dim of arrays; states keep their dtypes, as in PyTorch."""

    def body(states, xs):
        new, results = step(states, *xs)
        return jax.tree.map(lambda one, old: one.astype(old.dtype), new, states), results

    return lax.scan(body, states, xs, reverse=reverse)


_CELLS = SimpleNamespace(
    split=jnp.split, join=jnp.concatenate, sigmoid=jax.nn.sigmoid, tanh=jnp.tanh
)
_LAYERS = SimpleNamespace(
    **vars(_CELLS),
    relu=jax.nn.relu,
    where=jnp.where,
    zeros_like=lambda x: jnp.zeros(x.shape, opmath(x.dtype)),
    arange=lambda count, like: jnp.arange(count, dtype=like.dtype),
    product=lambda a, b: dot(a.astype(b.dtype), b, ((a.ndim - 1,), (0,))),
    transposed=lambda x: lax.optimization_barrier(x.T),  # once, and not in each step's product
    loop=_scan,
)


@op("torch_jax::rnn_layer", meta=False, products=True)
def rnn_layer(input, hx, cx, w_ih, w_hh, b_ih, b_hh, lengths, kind, reverse):
    """Return what :func:`layer` does, in the dtype of the input."""
    given = (input, hx, cx, w_ih, w_hh, b_ih, b_hh, lengths)
    output, cell = layer(_LAYERS, *given, kind, reverse)
    return output.astype(input.dtype), cell


@op("torch_jax::rnn_layer_backward", meta=False, products=True)
def rnn_layer_backward(
    grad, grad_cell, output, input, hx, cx, w_ih, w_hh, b_ih, b_hh, lengths, kind, reverse, wanted
):  # fmt: skip
    """Return the gradients of :func:`layer_backward` that are wanted."""
    given = (input, hx, cx, w_ih, w_hh, b_ih, b_hh)
    grad, grad_cell = (None if x is None else x.astype(opmath(x.dtype)) for x in (grad, grad_cell))
    rest = (output, *given, lengths, kind, reverse)
    grads = layer_backward(_LAYERS, grad, grad_cell, *rest)
    found = zip(wanted, grads, given, strict=True)
    return [grad.astype(of.dtype) if asked else None for asked, grad, of in found]


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
        return [None if x is None else x.astype(dtype) for x in cell(_CELLS, *wide)]


for _name, _cell in CELLS.items():
    _enter(_name, _cell)
