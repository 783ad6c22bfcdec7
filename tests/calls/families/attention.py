"""Attention: the function, the module around it, and the layers of transformers."""

from __future__ import annotations

from random import Random

from tests.calls.call import (
    FLOATS,
    Call,
    T,
    broadcast,
    call,
    chance,
    size,
    sizes,
    some,
    tensor,
    within,
)

CONTEXTS = ("math", "math, flash", "math", "autocast")


def function(r: Random) -> Call:
    """``scaled_dot_product_attention`` of any rank, mask and context."""
    leading = sizes(r, r.choice((0, 1, 2, 2, 2, 2, 3)), 3)
    length, keys, width, value_width = size(r, 6), size(r, 6), size(r, 8), size(r, 8)
    grouped = len(leading) > 1 and chance(r, 0.2)
    key_leading = _grouped(r, leading) if grouped else leading
    query_leading = (*leading[:-1], leading[-1] * 2) if grouped else leading
    if not grouped and chance(r, 0.3):
        key_leading = broadcast(r, leading, drop=False)
    dtype = r.choice(FLOATS)
    value_width = width if chance(r, 0.6) else value_width
    return call(
        "F.scaled_dot_product_attention",
        tensor(r, (*query_leading, length, width), dtype),
        tensor(r, (*key_leading, keys, width), dtype),
        tensor(r, (*key_leading, keys, value_width), dtype),
        within=within(r, *CONTEXTS),
        **_mask(r, (*query_leading, length, keys), dtype),
        **some(r, is_causal=chance(r, 0.4), scale=r.choice((None, 0.3, 1.0))),
        **({"enable_gqa": True} if grouped else {}),
    )


def _grouped(r: Random, leading: tuple[int, ...]) -> tuple[int, ...]:
    return (*leading[:-1], r.choice((1, leading[-1])))


def _mask(r: Random, shape: tuple[int, ...], dtype: str) -> dict:
    if chance(r, 0.35):
        return {}
    shape = broadcast(r, shape)
    kind = r.choice(("bool", "bool", dtype, dtype, "float32"))
    values = r.choice(("mask", "mask", "rows")) if kind == "bool" else r.choice(("mask", "normal"))
    values = "mask" if values == "rows" and len(shape) < 2 else values
    return {"attn_mask": tensor(r, shape, kind, values, grad=chance(r, 0.15) and kind != "bool")}


def multihead(r: Random) -> Call:
    """``nn.MultiheadAttention``, batched and not, with the masks that it takes."""
    heads, width, dtype = r.choice((1, 2)), r.choice((2, 4)), r.choice(("float32", "float64"))
    batch, length, keys = r.choice((1, 2)), r.randint(1, 4), r.randint(1, 4)
    options = {"embed_dim": heads * width, "num_heads": heads}
    options |= some(r, bias=False, add_bias_kv=True, add_zero_attn=True, batch_first=True)
    options |= some(r, kdim=3) if chance(r, 0.3) else {}
    batched = chance(r, 0.8)

    def sequence(steps: int, features: int) -> T:
        first = (batch, steps) if options.get("batch_first") else (steps, batch)
        return tensor(r, (*(first if batched else (steps,)), features), dtype)

    kind = r.choice(("bool", dtype))
    masks = some(
        r,
        attn_mask=T((length, keys), kind, values="mask"),
        key_padding_mask=T((batch, keys) if batched else (keys,), kind, values="mask"),
        need_weights=chance(r, 0.5),
        average_attn_weights=chance(r, 0.5),
    )
    return call(
        "module",
        "MultiheadAttention",
        options,
        sequence(length, heads * width),
        sequence(keys, options.get("kdim", heads * width)),
        sequence(keys, heads * width),
        train=chance(r, 0.5),
        within=within(r, "math"),
        **masks,
    )


def layer(r: Random) -> Call:
    """Layers of transformers, also where PyTorch takes its fused way."""
    width, batch, length, memory = 4, r.choice((1, 2)), r.randint(1, 4), r.randint(1, 4)
    options = {"d_model": width, "nhead": 2, "dim_feedforward": 6, "dropout": 0.0}
    options |= some(
        r, batch_first=True, norm_first=True, bias=False, activation=r.choice(("relu", "gelu"))
    )
    first = options.get("batch_first", False)

    def sequence(steps: int) -> T:
        return tensor(r, (batch, steps, width) if first else (steps, batch, width))

    decoder = chance(r, 0.4)
    prefix = "tgt_" if decoder else "src_"
    masks = {
        ("tgt_mask" if decoder else "src_mask"): T((length, length), "bool", values="mask"),
        prefix + "key_padding_mask": T((batch, length), "bool", values="mask"),
    }
    return call(
        "module",
        "TransformerDecoderLayer" if decoder else "TransformerEncoderLayer",
        options,
        sequence(length),
        *([sequence(memory)] if decoder else []),
        train=chance(r, 0.5),
        within=within(r, "math"),
        **some(r, **masks),
    )


CALLS = (function, function, function, function, function, multihead, multihead, layer)
