"""Calls that are no fair comparison: where CPU PyTorch itself is wrong, or says nothing.

A line is a pattern that the printed call matches, and one that the message of the failure does.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.calls.call import Call


class Exempt(NamedTuple):
    """Failures that are not ours."""

    reason: str
    call: str
    failure: str


EXCEPTIONS: tuple[Exempt, ...] = (
    Exempt(
        "of a product of no matrices the CPU compares no dtypes",
        r"matmul\(.*=T\(\(0, ",
        r"jax raises RuntimeError: expected scalar type",
    ),
    Exempt(
        "of a window in the padding alone the CPU names a place outside, and sends gradients there",
        r"F\.max_pool\dd\(.*padding=.*dilation=.*return_indices=True",
        r"Tensor-likes are not (equal|close)",
    ),
    Exempt(
        "the CPU's attention reads behind the last value, where there are fewer than keys",
        r"F\.scaled_dot_product_attention\(",
        r"jax raises RuntimeError: Expected size for first two dimensions of batch2",
    ),
    Exempt(
        "of a query in another order the CPU computes in float32; the flash kernel rounds heads",
        r"attention\(.*enable_gqa=True.* a=T\([^=]*=.b?float16', layout='permuted'",
        r"not close",
    ),
    Exempt(
        "of no elements the CPU draws none; PyTorch's shape functions refuse dtypes of other draws",
        r"form\(.*\b0\b",
        r"jax raises RuntimeError: (expected a float|Exponential|log_normal)",
    ),
    Exempt(
        "the CPU takes no gradient of a contiguous form for an input of another, as GPUs do",
        r"F\.(nll_loss|cross_entropy)\(",
        r"must raise RuntimeError: grad_input must be contiguous",
    ),
    Exempt(
        "the CPU leaves the sum of a matrix without columns as short as it was given",
        r"addmv\(.*\(\d+, 0\)",
        r"torch.Size\(\[\d\]\), not torch.Size",
    ),
    Exempt(
        "the CPU divides zero by zero for the weight's gradient of an empty input",
        r"F\.group_norm\(.*a=T\([^=]*\b0\b",
        r"(?s)not close.* nan",
    ),
    Exempt(
        "the CPU writes no loss of an empty batch",
        r"F\.multi_margin_loss\(.*a=T\(\(0, ",
        r"not close",
    ),
    Exempt(
        "the CPU reads an undefined weight, where only the bias is given and asks for gradients",
        r"F\.group_norm\(.*bias=",
        r"must raise RuntimeError: tensor does not have a device",
    ),
    Exempt(
        "the CPU's gradient takes parameters of float32 beside half types only with a weight",
        r"F\.layer_norm\(.*bias=",
        r"must raise RuntimeError: expected scalar type (Half|BFloat16) but found Float",
    ),
    Exempt(
        "the CPU divides by how often another index came",
        r"F\.embedding_bag\(.*scale_grad_by_freq=True",
        r"not close",
    ),
    Exempt(
        "where flash attention is allowed, the CPU asks a mask of one dim for its next to last one",
        r"attn_mask=\w+.*\w+=T\(\((\d+,)?\)",
        r"(must raise|not) IndexError: Dimension (specified as|out of range .* got) -2",
    ),
    Exempt(
        "for a value on the CPU a mask of bytes becomes masked_fill_, which takes none",
        r"setitem",
        r"raises? RuntimeError: masked_fill_ only supports boolean masks",
    ),
    Exempt(
        "the CPU leaves elements of a circular pad unwritten, where another side is cut",
        r"F\.pad\(.*-\d.*'circular'\)",
        r"Tensor-likes are not (equal|close)",
    ),
    Exempt(
        "the CPU has another kernel for one small volume, whose results are in plain strides",
        r"[Cc]onv3d.*T\(\(1, .*channels_last",
        r"strides",
    ),
    Exempt(
        "oneDNN gives an empty result where the other kernels, of other dtypes, refuse",
        r"F\.conv_transpose[123]d\(",
        r"jax raises RuntimeError: .*(too small|would have the sizes)",
    ),
    Exempt(
        "the CPU repeats the first row where antialiased images become one column wide, or stay so",
        r"[ (](size=(1\b|\(\d+, 1\))|scale_factor=(0\.[57]|\(.*, 0\.[57]\))).*antialias=True"
        r"|scale_factor=(1\.[05]|\(.*, 1\.[05]\)).*antialias=True.*T\(\([^)]*, 1\)",
        r"not close",
    ),
    Exempt(
        "along a dim that is not the last, the CPU's softmax of half precision rounds in between",
        r"F\.(log_)?softmax\(.*dtype=torch\.b?float16.*grad=True",
        r"not close",
    ),
    Exempt(
        "the CPU asks a result of no dims for its first, before it says what is wrong",
        r"torch\.addmv\(a.*a=T\(\(\)",
        r"not IndexError: Dimension specified as 0",
    ),
    Exempt(
        "cells on the CPU keep the order of the dims of the state, fused ones do not",
        r"GRUCell",
        r"strides",
    ),
    Exempt(
        "the CPU keeps gaps between the elements of what it clones",
        r"torch\.(slice|select)_scatter\(.*layout='(sliced|expanded)'",
        r"strides",
    ),
    Exempt(
        "conv1d on the CPU looks at the order of the weight's dims, and not at that of the input's",
        r"conv(_transpose)?1d\(.*b=T\([^)]*\)[^)]*layout='(transposed|permuted|expanded)'",
        r"strides",
    ),
    Exempt(
        "PyTorch's shape function keeps strides where there is one group, its kernel does not",
        r"channel_shuffle\(a, 1\).*layout='(transposed|permuted|expanded)'",
        r"strides",
    ),
    Exempt(
        "the CPU joins two slices, which keeps channels_last; as on CUDA, the result is contiguous",
        r"torch\.roll\(.*layout='channels_last'",
        r"strides",
    ),
    Exempt(
        "what a mask picks is contiguous here; the CPU keeps the order of the tensor's dims",
        r"getitem\(a.*a=T\([^)]*\)[^)]*layout='(transposed|permuted|expanded)'.*dtype='(bool|uint8)'",
        r"strides",
    ),
    Exempt(
        "PyTorch's shape function of indexing does not look at the order of an index's dims",
        r"getitem\(a.*layout='(transposed|permuted)', values=",
        r"strides",
    ),
    Exempt(
        "on the CPU integers take part in gradients, once floats that ask for them were written",
        r"setitem\(.*[( ]a=T\([^)]*\)[^)]*dtype='(int|uint|bool)",
        r"requires_grad",
    ),
    Exempt(
        "PyTorch's shape function begins with the order of the target's dims, its kernel with x's",
        r"F\.binary_cross_entropy\(.*reduction='none'.*a=T\([^)]*\)[^)]*layout='(transposed|permuted)'",
        r"strides",
    ),
    Exempt(
        "as on CUDA, autocast meets a complex convolution with a word for its padding as real ones",
        r"F\.conv[123]d\(.*padding='.*dtype='complex.*within='autocast'",
        r"not close",
    ),
    Exempt(
        "kernels for volumes give contiguous results where oneDNN gives channels_last",
        r"F\.conv(_transpose)?3d",
        r"strides",
    ),
    Exempt(
        "without gradients the CPU, and no other device, has a kernel for one dim",
        r"F\.max_pool1d\(",
        r"strides",
    ),
    Exempt(
        "the CPU takes one volume's order of dims for that of a batch of images, and refuses",
        r"F\.max_pool3d\(.*a=T\(\(\d+, \d+, \d+, \d+\).*layout='channels_last'",
        r"must raise RuntimeError: Unsupported memory format",
    ),
)


def exempt(call: Call, error: Exception) -> bool:
    """Whether a failure is one of the table's."""
    return any(
        re.search(line.call, repr(call)) and re.search(line.failure, str(error))
        for line in EXCEPTIONS
    )
