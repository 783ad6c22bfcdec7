"""Convolutions of one, two and three dimensions, transposed or not, and their gradient."""

from __future__ import annotations

import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax import target
from torch_jax.ops import conv_forms as forms
from torch_jax.ops.conv_forms import full
from torch_jax.ops.precision import precision
from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import InOrder, op


def _correlate(input, weight, geometry, dtype=None, spread=None, is_part=False) -> jax.Array:
    """Cross-correlate in NC... layout; ``edges`` pads each spatial dimension at both ends."""
    stride, edges, dilation, groups = geometry

    def convolve(input, weight):
        options = {
            "lhs_dilation": spread,
            "rhs_dilation": dilation,
            "feature_group_count": groups,
            "precision": precision(input.dtype, "conv"),
            "preferred_element_type": dtype,
        }
        if not target.on_cpu():
            return lax.conv_general_dilated(input, weight, stride, edges, **options)
        if input.ndim == 5:
            return _by_images(input, weight, geometry, dtype, spread, is_part)
        # channels last, as XLA's CPU backend turns it; in memory, since a sum behind it would have
        # YNNPACK convolve, which is slower
        last = "".join(map(str, range(input.ndim - 2)))
        input, weight = jnp.moveaxis(input, 1, -1), jnp.moveaxis(weight, (0, 1), (-1, -2))
        numbers = f"N{last}C", f"{last}IO", f"N{last}C"
        out = lax.conv_general_dilated(
            input, weight, stride, edges, dimension_numbers=numbers, **options
        )
        return jnp.moveaxis(out if is_part else lax.optimization_barrier(out), -1, 1)

    def shift(input, weight):
        return _by_shifts(input, weight, geometry, spread).astype(dtype or input.dtype)

    def multiply(input, weight):
        return forms.patches_forward(input, weight, geometry)

    if target.platform() == "gpu" and jnp.issubdtype(input.dtype, jnp.integer):
        return shift(input, weight)  # cuDNN convolves no integers
    depthwise = groups > 1 and weight.shape[1] == 1 and forms.is_small(weight.shape[2:])
    if depthwise and dtype is not None:
        return lax.platform_dependent(input, weight, cpu=shift, default=convolve)
    if dtype is not None and _is_grouped(input, weight.shape, groups):
        of_one = (*geometry[:3], 1), dtype, spread, True
        grouped = _by_groups(lambda x, w: _correlate(x, w, *of_one), groups, (1, 0, 1))
        return lax.platform_dependent(input, weight, cpu=grouped, default=convolve)
    if dtype is not None and spread is None and forms.forward_by_patches(input, weight, groups):
        return lax.platform_dependent(input, weight, cpu=multiply, default=convolve)
    return convolve(input, weight)


def _is_grouped(input, shape, groups: int) -> bool:
    """Return whether groups, of more than one channel each, are convolved one after the other."""
    return groups > 1 < shape[1] and forms.is_plain(input)


def _by_groups(product, groups: int, axes: tuple[int, int, int]):
    """Return a product of each group's channels, which operands and result have at these axes.

    XLA's CPU backend writes loops for groups, which take 2 to 10 times as long.
    """

    def split(x, axis):
        sizes = groups, x.shape[axis] // groups
        return jnp.moveaxis(x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :]), axis, 0)

    def run(*operands):
        parts = tuple(map(split, operands, axes))
        found = jnp.moveaxis(lax.map(lambda part: product(*part), parts), 0, axes[2])
        before, (each, *behind) = found.shape[: axes[2]], found.shape[axes[2] + 1 :]
        return found.reshape(*before, groups * each, *behind)

    return run


def _by_images(input, weight, geometry, dtype, spread, is_part) -> jax.Array:
    """Convolve volumes as images, whose channels are those of all slices that a window meets.

    XLA's CPU backend is 5 to 20 times faster so.
    """
    stride, edges, dilation, groups = geometry
    x = forms.padded(input, 2, edges[:1], spread and spread[:1])
    each = forms.parts(x, 2, weight.shape[2:3], stride[:1], dilation[:1])
    x = jnp.moveaxis(jnp.stack([part for _, part in each], 2), 3, 1)
    batch, depth, channels, slices, *size = x.shape
    images = x.reshape(batch * depth, channels * slices, *size)
    kernel = weight.reshape(weight.shape[0], weight.shape[1] * slices, *weight.shape[3:])
    flat = stride[1:], edges[1:], dilation[1:], groups
    out = _correlate(images, kernel, flat, dtype, spread and spread[1:], is_part)
    return jnp.moveaxis(out.reshape(batch, depth, *out.shape[1:]), 1, 2)


def _by_shifts(input, weight, geometry, spread) -> jax.Array:
    """Convolve as a sum of shifted inputs: on CPUs 20 times faster for a kernel per channel."""
    stride, edges, dilation, groups = geometry
    window, ones = weight.shape[2:], (1,) * (weight.ndim - 2)
    x, weight = (v.astype(opmath(v.dtype)) for v in (input, weight))
    x = forms.padded(x, 2, edges, spread)
    x = x.reshape(len(x), groups, 1, weight.shape[1], *x.shape[2:])
    total = jnp.zeros((), x.dtype)
    for taps, part in forms.parts(x, 4, window, stride, dilation):
        factor = weight[:, :, *taps].reshape(groups, -1, weight.shape[1], *ones)
        total = total + jnp.sum(part * factor, 3, dtype=x.dtype)
    return total.reshape(len(x), len(weight), *total.shape[3:])


def _to_input(output, size, weight, geometry, dtype=None) -> jax.Array:
    """Transpose ``_correlate`` by the input, of this size: a transposed convolution."""

    def convolve(output, weight):
        return _by_correlation(output, size, weight, geometry, dtype)

    def multiply(output, weight):
        return forms.patches_to_input(output, size, weight, geometry)

    if not output.size:  # XLA does not spread nothing
        shape = output.shape[0], weight.shape[1] * geometry[-1], *size
        return jnp.zeros(shape, dtype or output.dtype)
    if forms.input_by_patches(output, size, weight, geometry):
        return lax.platform_dependent(output, weight, cpu=multiply, default=convolve)
    return convolve(output, weight)


def _by_correlation(output, size, weight, geometry, dtype) -> jax.Array:
    """Do ``_to_input`` as a correlation with the flipped kernel."""
    stride, edges, dilation, groups = geometry
    back = []
    for o, n, k, s, (low, _), d in zip(
        output.shape[2:], size, weight.shape[2:], stride, edges, dilation, strict=True
    ):
        reach = (k - 1) * d
        back.append((reach - low, n + low - (o - 1) * s - 1))
    # the kernel (out, in/groups, ...) as (in, out/groups, ...), flipped
    outputs, inputs, *window = weight.shape
    weight = weight.reshape(groups, outputs // groups, inputs, *window).swapaxes(1, 2)
    weight = weight.reshape(groups * inputs, outputs // groups, *window)
    weight = lax.rev(weight, tuple(range(2, weight.ndim)))
    ones = (1,) * len(stride)
    return _correlate(output, weight, (ones, back, dilation, groups), dtype, spread=stride)


def _to_weight(output, input, shape, geometry) -> jax.Array:
    """Transpose ``_correlate`` by its kernel."""
    groups = geometry[3]

    def transpose(output, input):
        kernel = jax.ShapeDtypeStruct(shape, output.dtype)
        return jax.linear_transpose(lambda w: _correlate(input, w, geometry), kernel)(output)[0]

    def multiply(output, input):
        return form(output, input, shape, geometry)

    if _is_grouped(output, shape, groups):
        of_one = (shape[0] // groups, *shape[1:]), (*geometry[:3], 1)
        grouped = _by_groups(lambda y, x: forms.patches_to_weight(y, x, *of_one), groups, (1, 1, 0))
        return lax.platform_dependent(output, input, cpu=grouped, default=transpose)
    if (form := forms.weight_form(output, input, shape, geometry)) is not None:
        return lax.platform_dependent(output, input, cpu=multiply, default=transpose)
    return transpose(output, input)


def _geometry(n, stride, padding, dilation, transposed, output_padding, groups):
    """Return stride, edges, dilation and groups of the correlation, or of the one to transpose."""
    stride, padding, dilation = full(stride, n), full(padding, n), full(dilation, n)
    extra = full(output_padding, n) if transposed else (0,) * n
    return stride, [(p, p - e) for p, e in zip(padding, extra, strict=True)], dilation, groups


def _refuse(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """Raise for arguments that the CPU refuses and PyTorch's meta function lets pass."""
    n = input.ndim - 2
    steps = map(max, full(stride, n), full(dilation, n))
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    if (
        min(*stride, *dilation, groups) < 1
        or min(*padding, *output_padding) < 0
        # without elements, the CPU's kernel of an empty convolution runs, which looks at no padding
        or (transposed and input.size and any(map(operator.ge, full(output_padding, n), steps)))
        # only the batch and the channels may be empty
        or (input.size == 0 and input.shape[0] and input.shape[1])
        or weight.shape[0] < groups
        or (bias is not None and (bias.dtype, bias.shape) != (input.dtype, (outputs,)))
    ):
        sizes = input.shape, weight.shape, None if bias is None else bias.shape
        given = f"{stride=}, {padding=}, {dilation=}, {output_padding=}, {groups=}"
        raise ValueError(f"no convolution of input, weight and bias of {sizes} has {given}")


@op("convolution", "convolution_overrideable", channels_last=("input", "weight"), products=True)
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """Correlate, or transpose that; half types add the bias before they are rounded."""
    n = input.ndim - 2
    _refuse(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    geometry = _geometry(n, stride, padding, dilation, transposed, output_padding, groups)
    if transposed:
        window = zip(input.shape[2:], weight.shape[2:], *geometry[:3], strict=True)
        size = [(i - 1) * s + (k - 1) * d + 1 - sum(e) for i, k, s, e, d in window]
        if input.size and min(size) < 1:
            raise ValueError(f"the output would have the sizes {size}, of {input.shape[2:]}")
        out = _to_input(input, size, weight, geometry, opmath(input.dtype))
    else:
        out = _correlate(input, weight, geometry, opmath(input.dtype))
    out = out if bias is None else out + bias.astype(out.dtype).reshape(-1, *[1] * n)
    out = out.astype(input.dtype)  # the overrideable one has no meta function for it
    # no library convolves float64 in channels_last_3d
    return InOrder(out, tuple(range(5))) if (n, out.dtype) == (3, np.float64) else out


@op("convolution_backward", products=True)
def convolution_backward(grad_output, input, weight, bias_sizes, *geometry_and_mask):
    """Return gradients of input, weight and bias, None where the mask does not ask."""
    *options, output_mask = geometry_and_mask
    transposed = options[3]
    geometry = _geometry(input.ndim - 2, *options)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0] and transposed:
        grad_input = _correlate(grad_output, weight, geometry, opmath(grad_output.dtype))
    elif output_mask[0]:
        dtype = opmath(grad_output.dtype)
        grad_input = _to_input(grad_output, input.shape[2:], weight, geometry, dtype)
    if output_mask[1]:
        ends = (input, grad_output) if transposed else (grad_output, input)
        grad_weight = _to_weight(*ends, weight.shape, geometry)
    if output_mask[2]:
        axes = (0, *range(2, grad_output.ndim))
        grad_bias = grad_output.astype(opmath(grad_output.dtype)).sum(axes)
    return grad_input, grad_weight, grad_bias


@op("convolution_backward_overrideable", products=True)
def convolution_backward_overrideable(grad_output, input, weight, *geometry_and_mask):
    """Do ``convolution_backward`` as ``torch._convolution`` calls it."""
    gradients = convolution_backward(grad_output, input, weight, None, *geometry_and_mask)
    return tuple(g if g is None else g.astype(grad_output.dtype) for g in gradients)
