"""Images of other sizes: ``interpolate``, ``grid_sample``, ``affine_grid``, shuffled pixels."""

from __future__ import annotations

from random import Random

from tests.calls.call import Call, call, chance, size, some, tensor, within

DTYPES = ("float32", "float32", "float64", "bfloat16", "float16")
MODES = {
    1: ("nearest", "nearest-exact", "linear", "area"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area"),
    3: ("nearest", "nearest-exact", "trilinear", "area"),
}
SMOOTH = ("linear", "bilinear", "bicubic", "trilinear")


def interpolate(r: Random) -> Call:
    """``interpolate`` to a size or by a factor, in each mode."""
    rank = r.choice((1, 2, 2, 2, 3))
    mode = r.choice(MODES[rank])
    spatial = tuple(size(r, 5) for _ in range(rank))
    options = {"mode": mode}
    if chance(r, 0.5):
        options["size"] = (
            r.randint(1, 6) if chance(r, 0.4) else tuple(r.randint(1, 6) for _ in spatial)
        )
    else:
        factors = (0.5, 0.7, 1.0, 1.5, 2, 2.3)
        options["scale_factor"] = (
            r.choice(factors)
            if chance(r, 0.5)
            else tuple(float(r.choice(factors)) for _ in spatial)
        )
        options |= some(r, recompute_scale_factor=chance(r, 0.5))
    if mode in SMOOTH:
        options |= some(r, align_corners=chance(r, 0.5))
    if mode in ("bilinear", "bicubic") and chance(r, 0.3):
        options["antialias"] = True
    dtype = r.choice(DTYPES)
    if mode.startswith("nearest") and rank == 2 and chance(r, 0.1):
        dtype = "uint8"
    x = tensor(r, (size(r, 2), size(r, 3), *spatial), dtype)
    return call("F.interpolate", x, within=within(r), **options)


def grid_sample(r: Random) -> Call:
    """``grid_sample`` at places inside and outside of the image."""
    rank, dtype = r.choice((2, 2, 3)), r.choice(("float32", "float64", "float32", "bfloat16"))
    batch = size(r, 2)
    spatial = tuple(r.randint(1, 4) for _ in range(rank))
    modes = ("bilinear", "nearest", "bicubic") if rank == 2 else ("bilinear", "nearest")
    options = some(
        r,
        mode=r.choice(modes),
        padding_mode=r.choice(("zeros", "border", "reflection")),
        align_corners=chance(r, 0.5),
    )
    x = tensor(r, (batch, size(r, 3), *spatial), dtype)
    grid = tensor(r, (batch, *(size(r, 3) for _ in spatial), rank), dtype)
    return call("F.grid_sample", x, grid, within=within(r), **options)


def affine(r: Random) -> Call:
    """``affine_grid``."""
    rank, batch = r.choice((2, 3)), r.randint(1, 2)
    theta = tensor(r, (batch, rank, rank + 1), r.choice(("float32", "float64")))
    shape = (batch, 1, *(r.randint(1, 4) for _ in range(rank)))
    return call("F.affine_grid", theta, shape, within=within(r), **some(r, align_corners=True))


def shuffle(r: Random) -> Call:
    """``pixel_shuffle``, its inverse, and ``channel_shuffle``."""
    batch = () if chance(r, 0.3) else (size(r, 2),)
    factor, dtype = r.choice((1, 2)), r.choice(DTYPES)
    kind = r.choice(("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"))
    if kind == "pixel_unshuffle":
        shape = (*batch, 2, factor * r.randint(1, 2), factor * r.randint(1, 2))
    else:
        shape = (
            *(batch or (1,)),
            factor * factor * r.randint(1, 2),
            r.randint(1, 3),
            r.randint(1, 3),
        )
    return call(f"F.{kind}", tensor(r, shape, dtype), factor, within=within(r))


CALLS = (
    interpolate,
    interpolate,
    interpolate,
    interpolate,
    grid_sample,
    grid_sample,
    affine,
    shuffle,
)
