"""Operators of transformers: products with the experts of a mixture, for compiled models.

The library's own kernels read the ends of each expert's rows, which no program can. It calls
them where ``torch.compile`` or ``torch.export`` trace a model that is not in bfloat16.
"""

from __future__ import annotations

from torch_jax.ops.registry import op
from torch_jax.ops.scaled import grouped_mm


@op("transformers::grouped_mm_fallback", products=True)
def grouped_mm_fallback(input, weight, offs):
    """Return rows of ``input``, up to each of ``offs``, times a matrix of ``weight``."""
    return grouped_mm(input, weight, offs)


@op("transformers::grouped_mm_fallback_backward", products=True)
def grouped_mm_fallback_backward(input, weight, offs, grad_output):
    """Return gradients for ``input`` and ``weight``."""
    grad_input = grouped_mm(grad_output, weight.swapaxes(1, 2), offs)
    return grad_input, grouped_mm(input.T, grad_output, offs)
