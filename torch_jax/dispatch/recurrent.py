"""Routes ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` to one operator for each layer and direction.

PyTorch composes them of operators for each step. A program of these takes longer to compile the
longer a sequence is, and adds to the gradients of the weights at every step. The choice is made in
kernels above autograd, as for attention (:mod:`torch_jax.dispatch.attention_choice`). Calls that
the operator does not take (projections, tangents, ``vmap``, several dtypes) go PyTorch's own way.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torch_jax._private import functorch
from torch_jax.eager.stand_ins import TORCH
from torch_jax.memory.dtypes import FLOATS
from torch_jax.memory.storage import PLAIN_TENSORS, is_jax
from torch_jax.ops import rnn


def _padded(
    kind, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
):  # fmt: skip
    """Run the network over ``[time, batch, size]``, or ``[batch, time, size]``."""
    rest = (has_biases, num_layers, dropout, train, bidirectional)
    x = input.transpose(0, 1) if batch_first and input.dim() == 3 else input
    if x.shape[0] == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    if not _is_taken(kind, x, 3, hx, params, *rest):
        op = getattr(torch.ops.aten, kind).input
        return op.decompose(input, hx, params, *rest, batch_first)
    output, *states = _network(kind, x, None, hx, params, *rest)
    return output.transpose(0, 1) if batch_first else output, *states


def _packed(
    kind, data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional
):  # fmt: skip
    """Run the network over the data of a packed sequence: padded, as the sizes are no constants."""
    rest = (has_biases, num_layers, dropout, train, bidirectional)
    if not _is_taken(kind, data, 2, hx, params, *rest) or batch_sizes.device.type != "cpu":
        return getattr(torch.ops.aten, kind).data.decompose(data, batch_sizes, hx, params, *rest)
    numbers = torch.arange(int(batch_sizes[0]), device="cpu")
    within = numbers < batch_sizes[:, None]
    lengths = within.sum(0)
    ends = lengths.to(data.device), ((lengths - 1) * len(numbers) + numbers).to(data.device)
    places = within.flatten().nonzero().flatten().to(data.device)
    padded = data.new_zeros((within.numel(), data.shape[1])).index_put((places,), data)
    x = padded.unflatten(0, tuple(within.shape))
    output, *states = _network(kind, x, ends, hx, params, *rest)
    return output.flatten(0, 1)[places], *states


def _is_taken(
    kind, input, dims, hx, params, has_biases, num_layers, dropout, train, bidirectional
) -> bool:
    """Return whether the operator takes the layers: tensors of the device, of fitting shapes."""
    if functorch.forward_mode() or functorch.transforms_active():
        return False
    states = hx if kind == "lstm" else (hx,)
    tensors = (input, *states, *params)
    plain = all(type(t) in PLAIN_TENSORS and is_jax(t) and t.dtype == input.dtype for t in tensors)
    if not plain or input.dtype not in FLOATS or input.numel() == 0:
        return False
    if input.dim() != dims or not states or states[0].dim() != 3:
        return False
    hidden, directions = states[0].shape[-1], 1 + bidirectional
    rows, batch = rnn.KINDS[kind].gates * hidden, (input if dims == 3 else states[0]).shape[1]
    expected: list[tuple] = [(num_layers * directions, batch, hidden)] * len(states)
    for size in (input.shape[-1], *[hidden * directions] * (num_layers - 1)):
        expected += [(rows, size), (rows, hidden), *[(rows,)] * (2 * has_biases)] * directions
    return [tuple(t.shape) for t in (*states, *params)] == expected


def _network(kind, x, ends, hx, params, has_biases, num_layers, dropout, train, bidirectional):
    """Run layer after layer over ``[time, batch, size]``; return the output and the last states.

    ``ends`` has the lengths of sequences, and the numbers of their last steps among all steps.
    """
    states = hx if kind == "lstm" else (hx,)
    if torch.is_autocast_enabled(x.device.type) and x.dtype == torch.float32:
        dtype = torch.get_autocast_dtype(x.device.type)
        x, states, params = tree_map_only(torch.Tensor, lambda t: t.to(dtype), (x, states, params))
    first = [*zip(*(t.unbind(0) for t in states), strict=True)]
    directions, each = 1 + bidirectional, 2 + 2 * has_biases
    last = []
    for at in range(num_layers):
        outputs = []
        for number in range(at * directions, (at + 1) * directions):
            weights = [*params[number * each : (number + 1) * each], None, None][:4]
            start = [*first[number], None][:2]
            reverse = number > at * directions
            output, cell = _layer(x, *start, *weights, ends and ends[0], kind, reverse)
            outputs.append(output)
            if ends is None or reverse:
                final = output[0 if reverse else -1]
            else:  # after the last step of each sequence
                final = output.flatten(0, 1)[ends[1]]
            last.append((final, cell)[: len(states)])
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and at < num_layers - 1:
            x = torch.dropout(x, dropout, train)
    return x, *map(torch.stack, zip(*last, strict=True))


NETWORKS = {
    getattr(getattr(torch.ops.aten, kind), overload): functools.partial(run, kind)
    for kind in rnn.KINDS
    for overload, run in (("input", _padded), ("data", _packed))
}


def _layer(*args: Any) -> Any:
    needs_gradient = any(isinstance(t, torch.Tensor) and t.requires_grad for t in args)
    if not (needs_gradient and torch.is_grad_enabled()):
        return torch.ops.torch_jax.rnn_layer(*args)
    return _Layer.apply(*args)


class _Layer(torch.autograd.Function):
    """The operator with its gradient; the gradient of the gradient is PyTorch's, step by step."""

    @staticmethod
    def forward(context, *args):
        output, cell = torch.ops.torch_jax.rnn_layer(*args)
        context.save_for_backward(*args[:8], output)
        context.rest = args[8:]
        return output, cell

    @staticmethod
    def backward(context, grad, grad_cell):
        *given, lengths, output = context.saved_tensors
        rest = (lengths, *context.rest)
        if torch.is_grad_enabled():
            grads = _by_definition((grad, grad_cell), given, rest)
        else:
            wanted = context.needs_input_grad[:7]
            grads = torch.ops.torch_jax.rnn_layer_backward(
                grad, grad_cell, output, *given, *rest, wanted
            )
        return *grads, None, None, None


def _by_definition(grads, given, rest) -> list:
    """Return gradients that have a graph."""
    outputs = rnn.layer(TORCH, *given, *rest)
    wanted = [t for t in given if t is not None and t.requires_grad]
    pairs = [pair for pair in zip(outputs, grads, strict=True) if pair[0] is not None]
    outputs, grads = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in given]
