"""Embeddings and bags of them."""

from __future__ import annotations

from random import Random

from tests.calls.call import (
    FLOATS,
    Call,
    Code,
    T,
    call,
    chance,
    integers,
    size,
    sizes,
    some,
    tensor,
    within,
)


def table(r: Random) -> Call:
    """``embedding``, which may renormalize the rows that it reads."""
    rows, width = r.randint(1, 5), size(r, 4)
    renormalized = chance(r, 0.2)
    weight = (
        T((rows, width), r.choice(FLOATS))
        if renormalized
        else tensor(r, (rows, width), r.choice(FLOATS))
    )
    options = some(
        r, padding_idx=r.randrange(-rows, rows), scale_grad_by_freq=chance(r, 0.5), norm_type=1.0
    )
    options |= {"max_norm": 0.8} if renormalized else {}
    index = integers(r, sizes(r, r.randint(0, 3), 4), 0, rows, r.choice(("int64", "int32")))
    return call("F.embedding", index, weight, within=within(r), **options)


def bag(r: Random) -> Call:
    """``embedding_bag`` of two dims, or of one with offsets; bags may be empty."""
    rows, width, dtype = r.randint(1, 5), r.randint(1, 4), r.choice(FLOATS)
    mode, kind = r.choice(("sum", "mean", "max")), r.choice(("int64", "int32"))
    options = {"mode": mode, **some(r, padding_idx=r.randrange(-rows, rows))}
    options |= some(r, scale_grad_by_freq=True) if mode != "max" else {}
    weight = tensor(r, (rows, width), dtype)
    if chance(r, 0.4):
        shape = (size(r, 3), size(r, 3))
        index = integers(r, shape, 0, rows, kind)
    else:
        shape = (size(r, 6),)
        index = integers(r, shape, 0, rows, kind)
        cuts = sorted(r.randint(0, shape[0]) for _ in range(r.randint(0, 3)))
        whole = {"include_last_offset": True} if chance(r, 0.3) else {}
        ends = [shape[0]] if whole else []
        options |= {"offsets": _offsets([0, *cuts, *ends], kind), **whole}
    if mode == "sum" and chance(r, 0.5):
        options["per_sample_weights"] = tensor(r, shape, dtype)
    return call("F.embedding_bag", index, weight, within=within(r), **options)


def _offsets(values: list[int], kind: str) -> Code:
    """Offsets spelled out, on the device of the index, which is ``a``."""
    return Code(f"torch.tensor({values}, dtype=torch.{kind}, device=a.device)")


def module(r: Random) -> Call:
    """``nn.Embedding`` and ``nn.EmbeddingBag``."""
    options = {"num_embeddings": 4, "embedding_dim": 3, **some(r, padding_idx=r.choice((0, -1)))}
    index = integers(r, sizes(r, 2, 3), 0, 4)
    name = r.choice(("Embedding", "EmbeddingBag"))
    return call("module", name, options, index, within=within(r))


CALLS = (table, table, bag, bag, bag, module)
