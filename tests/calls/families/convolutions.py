"""Convolutions of one to three dims, transposed and not, and operators that unfold windows."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.calls.call import FLOATS, Call, call, chance, size, some, tensor, within

DTYPES = (*FLOATS, "complex64")


def _numbers(r: Random, rank: int, choices: tuple[int, ...]) -> Any:
    """One number for all dims, or one for each."""
    return r.choice(choices) if chance(r, 0.5) else tuple(r.choice(choices) for _ in range(rank))


def _batched(r: Random, *shape: int) -> tuple[int, ...]:
    return shape if chance(r, 0.2) else (size(r, 3), *shape)


def plain(r: Random) -> Call:
    """``conv1d`` to ``conv3d``."""
    rank, groups, dtype = r.choice((1, 2, 2, 3)), r.choice((1, 1, 1, 2, 3)), r.choice(DTYPES)
    channels, out = groups * r.randint(1, 2), groups * r.randint(1, 2)
    kernel = [r.randint(1, 3) for _ in range(rank)]
    spatial = [r.randint(k, k + 4) if chance(r, 0.95) else 0 for k in kernel]
    padding = r.choice(("same", "valid")) if chance(r, 0.3) else _numbers(r, rank, (0, 1, 2))
    stride = 1 if padding == "same" and chance(r, 0.9) else _numbers(r, rank, (1, 2, 3))
    bias = {"bias": tensor(r, (out,), dtype)}
    return call(
        f"F.conv{rank}d",
        tensor(r, _batched(r, channels, *spatial), dtype),
        tensor(r, (out, channels // groups, *kernel), dtype),
        groups=groups,
        within=within(r, "autocast"),
        **some(r, **bias, padding=padding, dilation=_numbers(r, rank, (1, 2))),
        **some(r, stride=stride),
    )


def transposed(r: Random) -> Call:
    """``conv_transpose1d`` to ``conv_transpose3d``."""
    rank, groups, dtype = r.choice((1, 2, 2, 3)), r.choice((1, 1, 1, 2)), r.choice(DTYPES)
    channels, out = groups * r.randint(1, 2), r.randint(1, 2)
    kernel = [r.randint(1, 3) for _ in range(rank)]
    spatial = [size(r, 4) for _ in range(rank)]
    bias = {"bias": tensor(r, (out * groups,), dtype)}
    return call(
        f"F.conv_transpose{rank}d",
        tensor(r, _batched(r, channels, *spatial), dtype),
        tensor(r, (channels, out, *kernel), dtype),
        groups=groups,
        within=within(r, "autocast"),
        **some(
            r, **bias, stride=_numbers(r, rank, (1, 2, 3)), padding=_numbers(r, rank, (0, 1, 2))
        ),
        **some(r, output_padding=_numbers(r, rank, (0, 1)), dilation=_numbers(r, rank, (1, 2))),
    )


def module(r: Random) -> Call:
    """Modules, whose padding has modes."""
    rank = r.choice((1, 2, 3))
    options = some(
        r,
        padding=r.choice((1, 2, "same")),
        padding_mode=r.choice(("zeros", "reflect", "replicate", "circular")),
        dilation=r.choice((1, 2)),
        bias=False,
    )
    shape = _batched(r, 2, *[r.randint(3, 5) for _ in range(rank)])
    options |= {"in_channels": 2, "out_channels": 2, "kernel_size": r.randint(1, 3)}
    dtype = r.choice(("float32", "float64"))
    return call("module", f"Conv{rank}d", options, tensor(r, shape, dtype), within=within(r))


def unfold(r: Random) -> Call:
    """``unfold`` and ``fold``, with windows of the same geometry."""
    kernel, options = (
        _numbers(r, 2, (1, 2, 3)),
        some(
            r,
            padding=_numbers(r, 2, (0, 1)),
            stride=_numbers(r, 2, (1, 2)),
            dilation=_numbers(r, 2, (1, 2)),
        ),
    )
    shape = _batched(r, size(r, 3), r.randint(2, 5), r.randint(2, 5))
    dtype = r.choice(FLOATS)
    if chance(r, 0.5):
        return call("F.unfold", tensor(r, shape, dtype), kernel, within=within(r), **options)
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    columns = _batched(r, r.randint(1, 2) * height * width, (5 - height) * (4 - width))
    columns = columns if all(columns) else (1, height * width, 1)
    return call(
        "F.fold", tensor(r, columns, dtype), (4, 3), kernel, within=within(r), **some(r, padding=1)
    )


def pad(r: Random) -> Call:
    """``pad`` in each mode, also by negative numbers."""
    rank, mode = r.choice((1, 2, 3)), r.choice(("constant", "reflect", "replicate", "circular"))
    shape = _batched(r, size(r, 3), *[r.randint(2, 4) for _ in range(rank)])
    dims = rank if mode != "constant" else r.randint(1, len(shape))
    amounts = tuple(r.choice((0, 0, 1, 1, 2, -1)) for _ in range(2 * dims))
    dtype = r.choice((*DTYPES, "int64", "bool"))
    value = {"value": r.choice((0.5, 1, 2))} if mode == "constant" and chance(r, 0.5) else {}
    return call("F.pad", tensor(r, shape, dtype), amounts, mode, within=within(r), **value)


CALLS = (plain, plain, plain, transposed, transposed, transposed, module, unfold, pad)
