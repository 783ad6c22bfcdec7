"""Losses: of numbers, of probabilities, of classes, of margins and of distances."""

from __future__ import annotations

from random import Random

from tests.calls.call import (
    FLOATS,
    Call,
    T,
    broadcast,
    call,
    chance,
    integers,
    size,
    sizes,
    some,
    tensor,
    within,
)

REDUCTIONS = ("none", "mean", "sum", "mean")
DTYPES = ("float32", "float32", "float64", "bfloat16", "float16")


def _shape(r: Random) -> tuple[int, ...]:
    return sizes(r, r.randint(0, 3), 4)


def _reduced(r: Random, **options) -> dict:
    return some(r, reduction=r.choice(REDUCTIONS), **options)


def regression(r: Random) -> Call:
    """Losses of two tensors of numbers."""
    shape, dtype = _shape(r), r.choice(DTYPES)
    name, options = r.choice(
        (
            ("mse_loss", {}),
            ("l1_loss", {}),
            ("smooth_l1_loss", {"beta": r.choice((0.0, 0.5, 2.0))}),
            ("huber_loss", {"delta": r.choice((0.5, 2.0))}),
            ("soft_margin_loss", {}),
            ("poisson_nll_loss", {"log_input": chance(r, 0.5), "full": chance(r, 0.5), "eps": 0.1}),
        )
    )
    if name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss") and chance(r, 0.3):
        other = broadcast(r, shape)
    else:
        other = shape
    values = "positive" if name == "poisson_nll_loss" else "signs" if name[:2] == "so" else "normal"
    return call(
        f"F.{name}",
        tensor(r, shape, dtype, "positive" if name == "poisson_nll_loss" else "normal"),
        tensor(r, other, dtype, values, grad=name[:2] != "so" and chance(r, 0.3)),
        within=within(r),
        **_reduced(r, **options),
    )


def probabilities(r: Random) -> Call:
    """Binary cross entropies and divergences."""
    shape, dtype = _shape(r), r.choice(DTYPES)
    weight = {"weight": tensor(r, broadcast(r, shape), dtype, "positive", grad=False)}
    kind = r.choice(("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"))
    if kind == "kl_div":
        log = chance(r, 0.5)
        return call(
            "F.kl_div",
            tensor(r, shape, dtype, "log"),
            tensor(r, shape, dtype, "log" if log else "unit"),
            log_target=log,
            within=within(r),
            **some(r, reduction=r.choice((*REDUCTIONS, "batchmean"))),
        )
    if kind == "binary_cross_entropy_with_logits":
        weight["pos_weight"] = tensor(r, broadcast(r, shape), dtype, "positive", grad=False)
    values = "normal" if kind.endswith("logits") else "unit"
    return call(
        f"F.{kind}",
        tensor(r, shape, dtype, values),
        tensor(r, shape, dtype, "unit", grad=chance(r, 0.2)),
        within=within(r),
        **_reduced(r, **weight),
    )


def classes(r: Random) -> Call:
    """``cross_entropy`` and ``nll_loss`` of classes or, for the former, of probabilities."""
    count, dtype = r.randint(1, 4), r.choice(DTYPES)
    batch, spatial = sizes(r, r.choice((0, 1, 1, 1)), 4), ()
    spatial = sizes(r, r.choice((0, 0, 1, 2, 3)), 3) if batch else ()
    weight = {"weight": tensor(r, (count,), dtype, "positive", grad=False)}
    entropy = chance(r, 0.65)
    x = tensor(r, (*batch, count, *spatial), dtype, "normal" if entropy else "log")
    if entropy and chance(r, 0.3):
        target = tensor(r, x.shape, dtype, "unit", grad=chance(r, 0.3))
        options = _reduced(r, label_smoothing=r.choice((0.0, 0.2)), **weight)
        return call("F.cross_entropy", x, target, within=within(r), **options)
    options = _reduced(r, **weight, ignore_index=r.randint(-1, count))
    low = -1 if options.get("ignore_index") == -1 else 0
    options |= some(r, label_smoothing=0.2) if entropy else {}
    target = integers(r, (*batch, *spatial), low, count)
    name = "F.cross_entropy" if entropy else "F.nll_loss"
    return call(name, x, target, within=within(r), **options)


def margins(r: Random) -> Call:
    """Losses of classes by margins."""
    count, dtype = r.randint(1, 4), r.choice(DTYPES)
    batch = sizes(r, r.choice((0, 1, 1)), 3)
    kind = r.choice(("multi_margin", "multilabel_margin", "multilabel_soft_margin"))
    x = tensor(r, (*batch, count), dtype)
    weight = {"weight": tensor(r, (count,), dtype, "positive", grad=False)}
    if kind == "multi_margin":
        options = _reduced(r, **weight, p=r.choice((1, 2)), margin=0.5)
        target = integers(r, batch, 0, count)
        return call("F.multi_margin_loss", x, target, within=within(r), **options)
    if kind == "multilabel_margin":
        target = integers(r, (*batch, count), -1, count)
        return call("F.multilabel_margin_loss", x, target, within=within(r), **_reduced(r))
    target = tensor(r, (*batch, count), dtype, "unit", grad=False)
    options = _reduced(r, **weight)
    return call("F.multilabel_soft_margin_loss", x, target, within=within(r), **options)


def distances(r: Random) -> Call:
    """Losses of pairs and triplets."""
    shape, dtype = sizes(r, r.choice((1, 2, 2)), 4), r.choice(DTYPES)
    kind = r.choice(("triplet", "cosine", "ranking", "hinge", "gaussian"))
    signs = tensor(r, shape[:-1], dtype, "signs", grad=False)
    if kind == "triplet":
        options = _reduced(r, margin=0.5, p=r.choice((1, 2, 3)), swap=True, eps=0.1)
        inputs = [tensor(r, shape, dtype) for _ in range(3)]
        return call("F.triplet_margin_loss", *inputs, within=within(r), **options)
    first, second = tensor(r, shape, dtype), tensor(r, shape, dtype)
    if kind == "cosine":
        options = _reduced(r, margin=0.3)
        return call("F.cosine_embedding_loss", first, second, signs, within=within(r), **options)
    signs = tensor(r, shape, dtype, "signs", grad=False)
    if kind == "ranking":
        options = _reduced(r, margin=0.3)
        return call("F.margin_ranking_loss", first, second, signs, within=within(r), **options)
    if kind == "hinge":
        options = _reduced(r, margin=0.3)
        return call("F.hinge_embedding_loss", first, signs, within=within(r), **options)
    variance = tensor(r, r.choice((shape, (*shape[:-1], 1))), dtype, "positive")
    options = _reduced(r, full=True, eps=0.1)
    return call("F.gaussian_nll_loss", first, second, variance, within=within(r), **options)


def similarities(r: Random) -> Call:
    """Distances and similarities, which broadcast."""
    shape, dtype = sizes(r, r.randint(1, 3), 4), r.choice(FLOATS)
    first, second = tensor(r, shape, dtype), tensor(r, broadcast(r, shape, drop=False), dtype)
    if chance(r, 0.5):
        options = some(r, dim=r.choice((0, -1)), eps=0.1)
        return call("F.cosine_similarity", first, second, within=within(r), **options)
    options = some(r, p=r.choice((1.0, 2.0, 3.0)), eps=0.1, keepdim=True)
    return call("F.pairwise_distance", first, second, within=within(r), **options)


def connectionist(r: Random) -> Call:
    """``ctc_loss``, also where a target is longer than its input."""
    steps, count, batch, longest = r.randint(1, 6), r.randint(2, 4), size(r, 3), r.randint(1, 3)
    blank = r.choice((0, count - 1))
    low, high = (1, count) if blank == 0 else (0, count - 1)
    targets = T((batch, longest), "int64", values=f"{low}:{high}")
    inputs = [r.randint(1, steps) for _ in range(batch)]
    lengths = [r.randint(0, longest) for _ in range(batch)]
    return call(
        "F.ctc_loss",
        tensor(r, (steps, batch, count), r.choice(("float32", "float64")), "log"),
        targets,
        tuple(inputs),
        tuple(lengths),
        blank=blank,
        within=within(r),
        **_reduced(r, zero_infinity=chance(r, 0.5)),
    )


CALLS = (regression, regression, probabilities, probabilities, classes, classes, classes, margins)
CALLS += (distances, distances, similarities, connectionist)
