"""Operators of CPU tensors that PyTorch's CPU has under another name, or composes.

PyTorch calls some operators for accelerators alone. Each entry of :data:`STAND_INS` has the
arguments and the results of such an operator.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from torch_jax.eager.variants import entering
from torch_jax.memory.shared import Elsewhere
from torch_jax.ops import rnn

STAND_INS: dict[str, Callable[..., Any]] = {}

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


_stands_in_for = entering(STAND_INS)


@_stands_in_for("aten::_scaled_dot_product_fused_attention_overrideable")
def attention(
    query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, _debug=False, *, scale=None
):
    """Return attention by the CPU's flash kernel; with dropout, JAX's, which draws the numbers."""
    key, value = _as_many_heads(query, key), _as_many_heads(query, value)
    if not takes_flash(query, key, value, dropout_p):
        raise Elsewhere
    mask = additive(attn_bias, query)
    out, sums = _flash(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)
    nothing = torch.zeros(2, dtype=torch.int64, device="cpu")
    return out, sums, None, None, query.shape[2], key.shape[2], nothing[0], nothing[1], None


@_stands_in_for("aten::_scaled_dot_product_fused_attention_overrideable_backward")
def attention_backward(
    grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, _lengths_q, _lengths_k,
    _max_q, _max_k, dropout_p, is_causal, _seed, _offset, *, scale=None,
):  # fmt: skip
    """Return gradients of query, key, value; JAX computes those of masks that need one."""
    keys, values = _as_many_heads(query, key), _as_many_heads(query, value)
    is_exact = logsumexp.dtype == torch.promote_types(query.dtype, torch.float32)  # not XLA's
    if grad_input_mask[3] or not is_exact or not takes_flash(query, keys, values, dropout_p):
        raise Elsewhere
    sums = logsumexp.view(query.shape[:3])
    sums = sums.masked_fill(sums == -torch.inf, 0)  # a row that sees nothing: -inf of XLA's, 0 here
    grads = _flash_backward(
        grad_out, query, keys, values, out, sums, 0.0, is_causal,
        attn_mask=additive(attn_bias, query), scale=scale,
    )  # fmt: skip
    pairs = zip(grads, (query.shape, key.shape, value.shape), strict=True)
    return *(g if g.shape == s else g.unflatten(1, (s[1], -1)).sum(2) for g, s in pairs), None


def takes_flash(query, key, value, dropout_p: float) -> bool:
    """Return whether the CPU would take its flash kernel for a call of four dims, not its math."""
    plain = query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    return plain and not dropout_p and query.shape[-1] == value.shape[-1]


def additive(mask: Any, query: torch.Tensor) -> Any:
    """Return a bool mask as numbers to add: 0 where a query may look, -inf where it may not."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
    return zeros.masked_fill_(mask.logical_not(), -torch.inf)


def _as_many_heads(query: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    times = query.shape[1] // other.shape[1]
    return other if times == 1 else other.repeat_interleave(times, dim=1)


@_stands_in_for("aten::_fused_rms_norm_backward")
def rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    """Return gradients of input and weight, in the order of autograd's operators on the CPU."""
    axes, count = [*range(-len(normalized_shape), 0)], math.prod(normalized_shape)
    x, grad = input.to(rstd.dtype), grad_out.to(rstd.dtype)
    grad_weight = None
    if output_mask[1]:
        grad_weight = (grad * (x * rstd)).sum_to_size(weight.shape).to(weight.dtype)
    scaled = grad if weight is None else grad * weight
    grad_rstd = (scaled * x).sum(axes, keepdim=True)
    grad_mean = -0.5 * grad_rstd * rstd.pow(3)
    grad_input = scaled * rstd + (grad_mean / count) * (x.pow(1) * 2)
    return grad_input.to(input.dtype) if output_mask[0] else None, grad_weight


def _loop(step, states, xs, reverse):
    """Run a step over the first dim of tensors, as ``jax.lax.scan``."""
    columns = [*zip(*(x.unbind(0) for x in xs), strict=True)]
    results = []
    for column in reversed(columns) if reverse else columns:
        states, found = step(states, *column)
        results.append(found)
    if reverse:
        results.reverse()
    return states, tuple(map(torch.stack, zip(*results, strict=True)))


TORCH = SimpleNamespace(
    split=torch.chunk,
    join=torch.cat,
    sigmoid=torch.sigmoid,
    tanh=torch.tanh,
    relu=torch.relu,
    where=torch.where,
    zeros_like=torch.zeros_like,
    arange=lambda count, like: torch.arange(count, device=like.device),
    product=torch.matmul,
    transposed=torch.t,
    loop=_loop,
)
for _name, _cell in rnn.CELLS.items():
    STAND_INS[f"aten::{_name}"] = functools.partial(_cell, TORCH)


@_stands_in_for("torch_jax::rnn_layer")
def rnn_layer(input, hx, cx, w_ih, w_hh, b_ih, b_hh, lengths, kind, reverse):
    """Return hidden states and the last cell state, of an LSTM by oneDNN."""
    given = (input, hx, cx, w_ih, w_hh, b_ih, b_hh)
    if _has_onednn(kind, lengths, input):
        output, _, cell, _ = _onednn_lstm(reverse, *_for_onednn(*given))
        return output, cell
    rest = {"lengths": lengths, "kind": kind, "reverse": reverse}
    output, cell = rnn.layer(TORCH, *map(_wide, given), **rest)
    return output.to(input.dtype), None if cell is None else cell.to(input.dtype)


@_stands_in_for("torch_jax::rnn_layer_backward")
def rnn_layer_backward(
    grad, grad_cell, output, input, hx, cx, w_ih, w_hh, b_ih, b_hh, lengths, kind, reverse, wanted
):  # fmt: skip
    """Return the gradients that are wanted, of an LSTM by oneDNN, which runs forward once more."""
    given = (input, hx, cx, w_ih, w_hh, b_ih, b_hh)
    if _has_onednn(kind, lengths, input):
        grads = _onednn_gradients(grad, grad_cell, _for_onednn(*given), reverse)
    else:
        rest = {"lengths": lengths, "kind": kind, "reverse": reverse}
        grads = rnn.layer_backward(TORCH, *map(_wide, (grad, grad_cell, output, *given)), **rest)
    found = zip(wanted, grads, given, strict=True)
    return tuple(one.to(of.dtype) if asked else None for asked, one, of in found)


def _wide(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.to(torch.promote_types(x.dtype, torch.float32))


def _has_onednn(kind: str, lengths: Any, input: torch.Tensor) -> bool:
    is_known = kind == "lstm" and lengths is None and input.dtype == torch.float32
    return is_known and torch.backends.mkldnn.is_available()


def _onednn_lstm(reverse, input, hx, cx, w_ih, w_hh, b_ih, b_hh):
    return torch.ops.aten.mkldnn_rnn_layer(
        input, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, [], 2, hx.shape[1], 1, True, False, False,
        True,
    )  # fmt: skip


def _onednn_gradients(grad, grad_cell, given, reverse):
    input, hx, cx, *weights = given
    with torch.enable_grad():  # without, there is no workspace
        output, hy, cy, workspace = _onednn_lstm(reverse, *given)
    grads = grad.contiguous(), torch.zeros_like(hy), grad_cell.contiguous()
    x, *weights, of_hx, of_cx = torch.ops.aten.mkldnn_rnn_layer_backward(
        input, *weights, hx, cx, output, hy, cy, *grads, reverse, 2, hx.shape[1], 1, True, True,
        False, [], False, workspace,
    )  # fmt: skip
    return x, of_hx, of_cx, *weights


def _for_onednn(input, hx, cx, w_ih, w_hh, b_ih, b_hh):
    """Return the operands as oneDNN takes them: contiguous, and with biases."""
    biases = (b_ih, b_hh) if b_ih is not None else (w_ih.new_zeros(w_ih.shape[0]),) * 2
    return tuple(x.contiguous() for x in (input, hx, cx, w_ih, w_hh, *biases))


@_stands_in_for("torch_jax::cross_entropy_backward")
def cross_entropy_backward(grad, log_softmax, *given):
    """Return the gradient of logits as PyTorch composes it."""
    target, weight, total, *how = given
    images = log_softmax.dim() == 4
    back = torch.ops.aten.nll_loss2d_backward if images else torch.ops.aten.nll_loss_backward
    chosen = back(grad, log_softmax, target, weight, *how, total)
    return torch.ops.aten._log_softmax_backward_data(chosen, log_softmax, 1, log_softmax.dtype)


@_stands_in_for("torch_jax::copy")
def copy(self, dtype):
    """Return a contiguous copy in a dtype."""
    return self.to(dtype, copy=True, memory_format=torch.contiguous_format)


STAND_INS["torch_jax::write_"] = torch.Tensor.copy_
STAND_INS["torch_jax::shift"] = torch.add


@_stands_in_for("torch_jax::adam_", "torch_jax::adam_.counted")
def adam(
    params, grads, means, squares, maxima, sizes, corrections, decay, weight, beta2, share, eps,
    kind, maximize,
):  # fmt: skip
    """Step as ``torch.optim.Adam``, tensor by tensor, so that each stays in the cache."""
    rows = zip(params, grads, means, squares, strict=True)
    for at, (param, grad, mean, square) in enumerate(rows):
        if maximize:
            grad = -grad
        if kind == "decoupled":
            param.mul_(decay)
        elif kind == "gradient":
            grad = grad.add(param, alpha=decay)
        mean.lerp_(grad, weight)
        square.mul_(beta2).addcmul_(grad, grad, value=share)
        if maxima:
            square = torch.maximum(maxima[at], square, out=maxima[at])
        root = square.sqrt().div_(corrections[at]).add_(eps)
        param.addcdiv_(mean, root, value=sizes[at])


@_stands_in_for("aten::linear_backward")
def linear_backward(input, grad_output, weight, output_mask):
    """Return the gradients that PyTorch's CPU has of a linear layer, whose parts it composes."""
    count = math.prod(input.shape[:-1])
    grads, rows = (x.reshape(count, x.shape[-1]) for x in (grad_output, input))
    of_input, of_weight, of_bias = output_mask
    return (
        grads.mm(weight).view(input.shape) if of_input else None,
        grads.t().mm(rows) if of_weight else None,
        grads.sum(0) if of_bias else None,
    )
