"""The choice of the library for a program's matrix products.

On the CPU YNNPACK takes 10 % less time than Eigen where the second matrix is transposed, as a
layer's weights are (1024 x 1536 by 384 x 1536), half for few rows (8 x 384 by 6282 x 384), a third
less in float64 and as much elsewhere. But it makes the products of a batch one after another on one
core, where Eigen splits each large one over all (attention of 2 x 8 heads x 512 x 32: 13 ms for 8),
and of bfloat16 it takes half as long again for many rows. (jaxlib 0.10.2, two cores with AVX2.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from torch_jax.budgets import MULTIPLICATIONS_OF_A_PRODUCT, ROWS_OF_A_BFLOAT16_PRODUCT

_PRODUCT = re.compile(r"stablehlo\.dot_general .*")
_LINE = re.compile(
    r"stablehlo\.dot_general .*?(?:batching_dims = \[(?P<batch>[\d, ]*)\] x \[[\d, ]*\], )?"
    r"contracting_dims = \[(?P<depth>[\d, ]*)\] x .*: \(tensor<(?P<first>[^>]*)>, [^)]*\) -> "
    r"tensor<(?P<result>[^>]*)>"
)


class Product(NamedTuple):
    """A product, or a batch: each of ``rows`` by ``depth`` and ``depth`` by ``columns``."""

    batch: int
    rows: int
    depth: int
    columns: int
    dtype: str


def products(program: str) -> list[Product] | None:
    """Return the products in the text of a program; None where one has unknown sizes.

    >>> products('''%2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1],
    ... '''.strip() + " precision = [HIGHEST, HIGHEST] : (tensor<8x4xf32>, tensor<6x4xf32>) -> "
    ... "tensor<8x6xf32>")
    [Product(batch=1, rows=8, depth=4, columns=6, dtype='f32')]
    """
    found = [_product(match) for match in _LINE.finditer(program)]
    if None in found or len(found) != program.count("stablehlo.dot_general "):
        return None
    return [product for product in found if product is not None]


def suit_ynnpack(program: str) -> bool:
    """Return whether a program has products, and YNNPACK takes no longer for any than Eigen."""
    found = products(program)
    return bool(found) and not any(map(_suits_eigen, found or ()))


def are_exact(program: str) -> bool:
    """Return whether a program has products, and all are of true float32 or of float64.

    >>> line = "stablehlo.dot_general %0, %1, precision = [HIGHEST, HIGHEST] : (tensor<8x4xf32>"
    >>> [are_exact(one) for one in (line, line.replace("HIGHEST", "DEFAULT"), "")]
    [True, False, False]
    """
    found = _PRODUCT.findall(program)
    return bool(found) and all("HIGHEST" in one and "f16>" not in one for one in found)


def _suits_eigen(one: Product) -> bool:
    if one.dtype == "bf16" and one.rows > ROWS_OF_A_BFLOAT16_PRODUCT:
        return True
    return one.batch > 1 and one.rows * one.depth * one.columns > MULTIPLICATIONS_OF_A_PRODUCT


def _product(match: re.Match[str]) -> Product | None:
    *first, dtype = match["first"].split("x")
    *result, _ = match["result"].split("x")
    if not all(size.isdigit() for size in (*first, *result)):
        return None
    sizes = [int(size) for size in first]
    batch, depth = (_sizes(match[which], sizes) for which in ("batch", "depth"))
    rows = math.prod(sizes) // max(batch * depth, 1)
    columns = math.prod(map(int, result)) // max(batch * rows, 1)
    return Product(batch, rows, depth, columns, dtype)


def _sizes(dims: str | None, sizes: Sequence[int]) -> int:
    return math.prod(sizes[int(d)] for d in (dims or "").split(",") if d.strip())
