"""Calls that differed from the CPU once, as they were printed."""

from __future__ import annotations

import pytest

from tests.calls.call import T
from tests.calls.compare import check

FOUND = {
    "attention without keys divided by the heads": lambda: check(
        "F.scaled_dot_product_attention(a, b, b, attn_mask=c, enable_gqa=True)",
        a=T((3, 0, 1, 5)),
        b=T((3, 0, 3, 5), grad=True),
        c=T((), dtype="bool", values="mask"),
    ),
    "attention without keys gave a gradient for the mask": lambda: check(
        "F.scaled_dot_product_attention(a, b, b, attn_mask=c)",
        a=T((1, 6), grad=True),
        b=T((0, 6), grad=True),
        c=T((1, 1), grad=True),
    ),
    "attention has the order of the query's dims only where flash attention has": lambda: check(
        "F.scaled_dot_product_attention(a, b, b)",
        a=T((2, 2, 5, 4), layout="channels_last"),
        b=T((2, 2, 6, 4), grad=True),
    ),
    "a mask and is_causal": lambda: check(
        "F.scaled_dot_product_attention(a, b, b, attn_mask=c, is_causal=True)",
        a=T((2, 1, 6, 7)),
        b=T((2, 1, 5, 7), grad=True),
        c=T((2, 1, 6, 1), dtype="bool", values="rows"),
    ),
    "a convolution of an empty image": lambda: check(
        "F.conv1d(a, b, padding=1)", a=T((3, 2, 0)), b=T((2, 2, 1))
    ),
    "a pooled image of one pixel keeps channels_last strides": lambda: check(
        "F.max_unpool2d(*F.max_pool2d(a, 2, return_indices=True), 2)",
        a=T((1, 3, 2, 2), layout="channels_last"),
    ),
    "an output of a transposed convolution that is empty in one dim": lambda: check(
        "F.conv_transpose3d(a, b, padding=(1, 1, 2))",
        a=T((2, 2, 4, 1, 4), dtype="float64"),
        b=T((2, 2, 3, 3, 1), dtype="float64"),
    ),
    "a complex convolution of channels_last": lambda: check(
        "F.conv2d(a, b, padding=(0, 1))",
        a=T((2, 2, 4, 3), dtype="complex64", layout="channels_last"),
        b=T((2, 2, 2, 2), dtype="complex64"),
    ),
    "slices of another size, as many elements": lambda: check(
        "anew('index_add_', a, 0, b, c)", a=T((2, 3)), b=T((3,), dtype="int64"), c=T((3, 2))
    ),
    "slices of another size, of which there are none": lambda: check(
        "anew('index_add_', a, 0, b, c)", a=T((1, 1, 3)), b=T((0,), dtype="int64"), c=T((0, 1, 2))
    ),
    "padding of channels_last": lambda: check(
        "F.pad(a, (1, 1, 1, 1), 'replicate')", a=T((2, 3, 3, 4), layout="channels_last")
    ),
    "pixels of channels_last": lambda: check(
        "F.pixel_shuffle(a, 2)", a=T((1, 8, 2, 3), layout="channels_last")
    ),
    "columns whose sizes look transposed": lambda: check(
        "F.unfold(a, (1, 2), stride=(2, 1), dilation=2)", a=T((3, 1, 4, 3))
    ),
    "values of another dtype": lambda: check(
        "setitem(a, ([0],), b)", a=T((2,)), b=T((1,), dtype="bool")
    ),
    "indices that do not broadcast with a mask": lambda: check(
        "getitem(a, (b, [1, 0], c))",
        a=T((2, 2, 2)),
        b=T((3,), dtype="int64", values="-2:2"),
        c=T((2,), dtype="bool", values="mask"),
    ),
    "an index into nothing": lambda: check("getitem(a, (slice(None), [1, 2]))", a=T((4, 0))),
    "an index out of range into nothing": lambda: check(
        "getitem(a, (slice(2, 2), b))", a=T((4, 3)), b=T((2,), dtype="int64", values="7:9")
    ),
    "an index of int32": lambda: check(
        "torch.index_copy(a, 0, b, c)",
        a=T((4,)),
        b=T((1,), dtype="int32", values="0:4"),
        c=T((1,)),
    ),
    "a slice of another size": lambda: check(
        "torch.slice_scatter(a, b, 0, 1, 2, 3)", a=T((2,)), b=T((2,))
    ),
    "an adaptive mean of nothing": lambda: check(
        "F.adaptive_avg_pool2d(a, (3, 5))", a=T((2, 1, 0, 0))
    ),
    "group_norm of nothing": lambda: check("F.group_norm(a, 2)", a=T((1, 4, 0, 3), grad=True)),
    "an image of no width": lambda: check(
        "F.interpolate(a, mode='linear', scale_factor=0.5)", a=T((2, 3, 1))
    ),
    "nearest neighbours of no batch": lambda: check(
        "F.interpolate(a, mode='nearest', size=2)", a=T((0, 3, 4, 1), dtype="float16", grad=True)
    ),
    "a softmax over a dim that is not there": lambda: check("F.softmax(a, dim=5)", a=T((2, 3))),
    "a softmax of nothing over it": lambda: check("F.log_softmax(a, dim=5)", a=T((0, 3))),
    "a dim that a scalar does not have": lambda: check("torch.cummax(a, 1)", a=T(())),
    "nll_loss of a row of targets for each row of samples": lambda: check(
        "F.nll_loss(a, b)",
        a=T((2, 4, 2, 2), grad=True),
        b=T((2, 1, 2), dtype="int64", values="0:4"),
    ),
    "smooth_l1_loss of nothing": lambda: check(
        "F.smooth_l1_loss(a, b)", a=T((2, 0), grad=True), b=T((2, 0))
    ),
    "solve_triangular of another dtype": lambda: check(
        "torch.linalg.solve_triangular(a, b, upper=False)",
        a=T((2, 2), values="positive"),
        b=T((2, 1), dtype="bfloat16"),
    ),
    "conv_transpose3d of nothing": lambda: check(
        "F.conv_transpose3d(a, b, stride=2, dilation=(1, 2, 1))",
        a=T((0, 2, 2, 1, 0), grad=True),
        b=T((2, 1, 2, 3, 3), grad=True),
    ),
    "a norm of the last dim, of no vectors": lambda: check(
        "torch.linalg.vector_norm(a, -1, dim=-1)", a=T((1, 0, 4), layout="expanded")
    ),
    "ctc_loss of no batch": lambda: check(
        "F.ctc_loss(a, b, (), ())", a=T((5, 0, 4)), b=T((0, 2), dtype="int64", values="1:3")
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_found(what):
    FOUND[what]()
