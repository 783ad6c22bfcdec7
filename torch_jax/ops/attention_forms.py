"""The choice of attention's form: a kernel of the platform's, or blocks of rows.

Pure predicates over the properties of a call, for any machine.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch_jax.budgets import GROUPS_OF_BLOCKS, ROWS_OF_A_BLOCK


class Call(NamedTuple):
    """The properties of a call that decide its form; shapes have four dims."""

    platform: str  # JAX's name: "cpu", "gpu", "tpu"
    dtype: str  # name of the dtype of query, key and value
    query: tuple[int, ...]  # batch, heads, rows, width; so are the next two
    key: tuple[int, ...]
    value: tuple[int, ...]
    bias: tuple[int, ...] | None = None  # shape of the mask; None where there is none
    is_causal: bool = False  # whether a row sees the keys up to its own number only
    is_gradient: bool = False  # whether the gradients are asked for
    dropout: float = 0.0  # the probability
    precision: str = "highest"  # of float32 products; or "high", "medium"
    capability: tuple[int, int] = (0, 0)  # of a GPU of NVIDIA's, as (9, 0)
    cudnn: int = 0  # the version of cuDNN, as 91000; 0 where there is none
    devices: int = 1  # how many devices a program of this process may be spread over


_HALVES = ("bfloat16", "float16")


def takes_cudnn(call: Call) -> bool:
    """Return whether cuDNN's fused attention takes a call: half types, on GPUs from Ampere on.

    It draws dropout by itself, from other random numbers than the generator's; where lengths
    differ, its causal mask may begin at another corner; under two masks at once the rows that see
    nothing are unknown; and it has no gradients of odd lengths. It gets no such calls.
    """
    (rows, width), keys = call.query[-2:], call.key[-2]
    widest = 256 if call.capability >= (9, 0) else 128
    even = rows % 2 == 0 == keys % 2
    return (
        call.platform == "gpu"
        and call.cudnn >= 8904
        and call.capability >= (8, 0)
        and call.dtype in _HALVES
        and not call.dropout
        and call.value == call.key
        and width % 8 == 0
        and width <= widest
        and (not call.is_causal or rows == keys)
        and (call.bias is None or (even and not call.is_causal))
        and (even or not call.is_gradient)
        and rows > 1  # one row of a decoder is a product of a vector
    )


def takes_splash(call: Call) -> bool:
    """Return whether Pallas' splash attention for TPUs takes a call: 128 lanes, no mask.

    Its products of float32 are of bfloat16s, which must be allowed. XLA cannot split it over
    devices.
    """
    (rows, width), keys = call.query[-2:], call.key[-2]
    allowed = call.dtype == "bfloat16" or (call.dtype == "float32" and call.precision == "medium")
    return (
        call.platform == "tpu"
        and allowed
        and call.devices == 1
        and call.bias is None
        and not call.dropout
        and call.value == call.key
        and all(n % 128 == 0 for n in (rows, keys, width))
        and (not call.is_causal or rows == keys)
    )


def choose(call: Call) -> str:
    """Return the name of the form that serves a call.

    >>> shape = (2, 8, 1024, 64)
    >>> choose(Call("gpu", "bfloat16", shape, shape, shape, capability=(8, 0), cudnn=91000))
    'cudnn'
    >>> choose(Call("cpu", "bfloat16", shape, shape, shape))
    'blocks'
    """
    if takes_cudnn(call):
        return "cudnn"
    return "splash" if takes_splash(call) else "blocks"


class Group(NamedTuple):
    """Rows ``start`` to ``stop`` in blocks of ``block``, each given the first ``keys`` keys."""

    start: int
    stop: int
    block: int
    keys: int


class Sizes(NamedTuple):
    """Hold the sizes of blocks on a platform."""

    rows: int  # of a block
    causal_rows: int  # of a block of short causal sequences: larger ones would skip nothing
    whole: int  # scores, up to which they are made all at once
    whole_causal: int  # the same of causal sequences
    most: int  # scores of a block, where blocks can be made smaller


# A block of an accelerator is a launch or more, and reads keys and values again: it is cut only to
# save memory, at 256 MiB of scores.
_LARGE = Sizes(512, 512, 1 << 26, 1 << 26, 1 << 26)
# Measured on two cores, batch times heads of 8 to 48, 64 wide: blocks of 64 to 256 rows are within
# 10 % of one another. Scores of one block stay in the cache.
SIZES = {"cpu": Sizes(128, 64, 1 << 21, 0, 1 << 24), "gpu": _LARGE, "tpu": _LARGE}
"""By JAX's name of the platform."""


def groups(shape: tuple[int, ...], keys: int, is_causal: bool, sizes: Sizes) -> tuple[Group, ...]:
    """Return the blocks of a query of ``shape``, ``(…, rows, width)``, with so many keys.

    >>> groups((8, 6, 128, 64), 128, True, SIZES["cpu"])
    (Group(start=0, stop=64, block=64, keys=64), Group(start=64, stop=128, block=64, keys=128))
    >>> groups((8, 6, 128, 64), 128, True, SIZES["tpu"])
    (Group(start=0, stop=128, block=128, keys=128),)
    """
    if not all(isinstance(n, int) for n in (*shape, keys)):  # sizes of an export that may change
        return (Group(0, shape[-2], shape[-2], keys),)
    rows, heads = shape[-2], math.prod(shape[:-2])
    causal = is_causal and rows > sizes.causal_rows
    if heads * rows * keys <= (sizes.whole_causal if causal else sizes.whole):
        return (Group(0, rows, rows, keys),)
    block = sizes.causal_rows if causal and rows <= 2 * sizes.rows else sizes.rows
    while block > ROWS_OF_A_BLOCK and heads * block * keys > sizes.most:
        block //= 2
    whole = rows // block * block
    steps = -(-(whole // block) // GROUPS_OF_BLOCKS) * block if causal else whole
    found = [(at, min(at + steps, whole)) for at in range(0, whole, max(steps, 1))]
    found += [(whole, rows)] if whole < rows else []
    return tuple(
        Group(start, stop, min(block, stop - start), min(keys, stop) if causal else keys)
        for start, stop in found
    )
