"""Products of eight-bit floats that carry scales, and products of groups of rows.

Both are computed in float32. Each operand is multiplied by its scale, one of all or one a row of
the output, before the product, as on the CPU.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax.ops.matmul import dot, matrix_product
from torch_jax.ops.precision import precision
from torch_jax.ops.promotion import convert, opmath
from torch_jax.ops.registry import op

_TENSORWISE, _ROWWISE = range(2)


def _scaled(x, scale):
    """Return ``x`` in float32 times a scale for all, or, (M, 1) or (1, N), for each row."""
    return x.astype(jnp.float32) * (scale.reshape(()) if scale.size == 1 else scale)


# PyTorch's meta function asks for the layouts and multiples that CUDA's kernels do.
@op("_scaled_mm", meta=False, products=True)
def scaled_mm(
    self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
):
    """Return ``(self * scale_a) @ (mat2 * scale_b) + bias``; the CPU takes no ``scale_result``."""
    out = dot(_scaled(self, scale_a), _scaled(mat2, scale_b), ((1,), (0,)))
    out = out if bias is None else out + bias.astype(out.dtype)
    return convert(out, self.dtype if out_dtype is None else out_dtype)


@op("_scaled_mm_v2", meta=False, products=True)
def scaled_mm_v2(
    self,
    mat2,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    bias,
    out_dtype,
    contraction_dim=(),
    use_fast_accum=False,
):
    """Do ``_scaled_mm`` with scales of a named kind, of which the CPU has two."""
    if {*recipe_a, *recipe_b} - {_TENSORWISE, _ROWWISE}:
        raise NotImplementedError("_scaled_mm_v2 takes one scale a tensor or one a row")
    return scaled_mm(self, mat2, scale_a[0], scale_b[0], bias, out_dtype=out_dtype)


# the meta function refuses all other dtypes
@op("_grouped_mm", meta=lambda self: self.dtype == jnp.bfloat16, products=True)
def grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None):
    """Return products of groups: a batch of matrices, or parts of one that end at ``offs``.

    Parts are rows of ``self``, columns of ``mat2``, or, of two matrices, of the dimension that is
    summed over. Parts past the last end give zeros.
    """
    sizes = None if offs is None else jnp.diff(offs, prepend=0)
    if sizes is None:
        out = matrix_product(self, mat2)
    elif self.ndim == 2:
        out = _ragged(self, mat2, sizes, contract=mat2.ndim == 2)
    else:
        out = _ragged(mat2.T, self.swapaxes(1, 2), sizes, contract=False).T
    return out.astype(self.dtype if out_dtype is None else out_dtype)


def _ragged(a: jax.Array, b: jax.Array, sizes: jax.Array, contract: bool) -> jax.Array:
    """Multiply each row of ``a`` by its group's matrix; or return a product for each group."""
    dims = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (0,)) if contract else ((1,), (1,)), ((), ())),
        lhs_ragged_dimensions=[1 if contract else 0],
        rhs_group_dimensions=[] if contract else [0],
    )
    wide = opmath(a.dtype)

    def product(a, b):
        return lax.ragged_dot_general(
            a, b, sizes, dims, precision=precision(a.dtype), preferred_element_type=wide
        )

    def widened(a, b):  # XLA's CPU backend has no such product of half types
        return product(a.astype(wide), b.astype(wide))

    return lax.platform_dependent(a, b, cpu=widened, default=product)


# Operators of transformers, for compiled models that are not in bfloat16: the library's own kernels
# read the ends of each expert's rows, which no program can.


@op("transformers::grouped_mm_fallback", products=True)
def grouped_mm_fallback(input, weight, offs):
    """Return rows of ``input``, up to each of ``offs``, times a matrix of ``weight``."""
    return grouped_mm(input, weight, offs)


@op("transformers::grouped_mm_fallback_backward", products=True)
def grouped_mm_fallback_backward(input, weight, offs, grad_output):
    """Return gradients for ``input`` and ``weight``."""
    grad_input = grouped_mm(grad_output, weight.swapaxes(1, 2), offs)
    return grad_input, grouped_mm(input.T, grad_output, offs)
