"""Results that are not unique: the part of an output that two devices must share.

The factors of an SVD are unique up to a phase, eigenvectors up to scale, random numbers up to
their distribution. For such an entry a function here takes the arguments and the output and
returns what is well defined, which is then compared as any other result is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Invariant = Callable[[tuple, dict, Any], Any]


def _form(args: tuple, kwargs: dict, output: Any) -> Any:
    """Shapes and dtypes only: uninitialised or random memory."""
    if isinstance(output, list | tuple):
        return [_form(args, kwargs, o) for o in output]
    return torch.zeros_like(output)


def _finite(args: tuple, kwargs: dict, output: torch.Tensor) -> Any:
    """A draw: its form, and that every element is a number (or a bool, for two-valued draws)."""
    return torch.zeros_like(output), bool(output.isfinite().all())


def _zero_or_one(args: tuple, kwargs: dict, output: torch.Tensor) -> Any:
    return torch.zeros_like(output), bool(((output == 0) | (output == 1)).all())


def _dropped(args: tuple, kwargs: dict, output: torch.Tensor) -> Any:
    """Dropout: every element is zero or the input scaled by ``1 / (1 - p)``."""
    x = args[0]
    rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    if not kwargs.get("training", True) or rate == 0:
        return output
    kept = x / (1 - rate) if rate < 1 else torch.zeros_like(x)
    return torch.zeros_like(output), bool(((output == 0) | torch.isclose(output, kept)).all())


def _attended(args: tuple, kwargs: dict, output: Any) -> Any:
    """Attention: its form where a part of the weights is dropped."""
    return _form(args, kwargs, output) if _attention_dropout(args, kwargs) else output


def _attention_dropout(args: tuple, kwargs: dict) -> float:
    """``dropout_p``, the eleventh argument of ``multi_head_attention_forward``."""
    return kwargs.get("dropout_p", args[10] if len(args) > 10 else 0.0)


def _pooled(args: tuple, kwargs: dict, output: Any, rank: int = 2) -> Any:
    """Maxima over windows drawn at random: each is the element that its index names."""
    if isinstance(output, torch.Tensor):
        return _finite(args, kwargs, output)
    values, indices = (o.flatten(-rank) for o in output)
    named = args[0].flatten(-rank).gather(-1, indices)
    return _form(args, kwargs, output), torch.equal(named, values)


def _pooled_volumes(args: tuple, kwargs: dict, output: Any) -> Any:
    return _pooled(args, kwargs, output, rank=3)


def _gram(x: torch.Tensor) -> torch.Tensor:
    return x.mH @ x


def _svd_vh(args: tuple, kwargs: dict, output: Any) -> Any:
    u, s, vh = output
    if not u.numel() or not vh.numel():
        return _form(args, kwargs, output)
    k = s.shape[-1]
    product = (u[..., :k] * s.unsqueeze(-2).to(u.dtype)) @ vh[..., :k, :]
    return s, product, _gram(u), _gram(vh.mH)


def _svd_v(args: tuple, kwargs: dict, output: Any) -> Any:
    """``torch.svd`` gives V; ``linalg.svd`` its conjugate transpose."""
    u, s, v = output
    if kwargs.get("compute_uv") is False:
        return s, _form(args, kwargs, output)
    return _svd_vh(args, kwargs, (u, s, v.mH))


def _low_rank(args: tuple, kwargs: dict, output: Any) -> Any:
    """A random projection: orthonormal factors, and a product nearly as near as can be."""
    u, s, v = output
    a = _product(args)
    a = a if kwargs.get("M") is None else a - kwargs["M"]
    error = torch.linalg.matrix_norm(a - (u * s.unsqueeze(-2).to(u.dtype)) @ v.mH)
    spectrum = torch.linalg.svdvals(a)
    best = torch.linalg.vector_norm(spectrum[..., s.shape[-1] :], dim=-1)
    near = bool((error <= 10 * best + 1e-4 * spectrum[..., 0]).all())
    return _form(args, kwargs, output), _gram(u), _gram(v), near


def _product(args: tuple) -> torch.Tensor:
    """The database gives a matrix of low rank as two factors."""
    return args[0] @ args[1].mT if len(args) > 1 else args[0]


def _principal(args: tuple, kwargs: dict, output: Any) -> Any:
    """``pca_lowrank`` is that of the centred matrix."""
    a = _product(args)
    centered = a - a.mean(-2, keepdim=True) if kwargs.get("center", True) else a
    return _low_rank((centered,), {}, output)


def _eig(args: tuple, kwargs: dict, output: Any) -> Any:
    """``A V = V diag(L)``, columns of length one, and the spectrum as a set."""
    values, vectors = output
    if not values.numel():
        return _form(args, kwargs, output)
    a = args[0].to(values.dtype)
    residual = a @ vectors - vectors * values.unsqueeze(-2)
    return residual, vectors.abs().square().sum(-2), _spectrum(values)


def _eigvals(args: tuple, kwargs: dict, output: Any) -> Any:
    return _spectrum(output)


def _spectrum(values: torch.Tensor) -> Any:
    """Symmetric functions of the eigenvalues: the sums of their first powers."""
    if not values.numel():
        return values
    return [(values**k).sum(-1) for k in range(1, min(values.shape[-1], 4) + 1)]


def _eigh(args: tuple, kwargs: dict, output: Any) -> Any:
    values, vectors = output
    if not values.numel():
        return _form(args, kwargs, output)
    product = (vectors * values.unsqueeze(-2).to(vectors.dtype)) @ vectors.mH
    return values, product, _gram(vectors)


def _qr(args: tuple, kwargs: dict, output: Any) -> Any:
    q, r = output
    if not q.numel():
        return _form(args, kwargs, output)
    return q[..., : r.shape[-2]] @ r, _gram(q), r.tril(-1), r.abs()


def _multinomial(args: tuple, kwargs: dict, output: torch.Tensor) -> Any:
    """Every index has a positive weight, and none comes twice without replacement."""
    weights = args[0].expand(*output.shape[:-1], -1).double()
    possible = bool((weights.gather(-1, output) > 0).all())
    replaced = kwargs.get("replacement", args[2] if len(args) > 2 else False)
    ordered = output.sort(-1).values
    distinct = bool((ordered[..., 1:] != ordered[..., :-1]).all())
    return torch.zeros_like(output), possible, replaced or distinct


def _picks(dim_at: int) -> Invariant:
    """Which of equal elements an operator picks is free: the positions must name the values.

    ``dim`` is the argument at ``dim_at``. A sort with ``stable=True`` leaves nothing free.
    """

    def picked(args: tuple, kwargs: dict, output: Any) -> Any:
        values, positions = (None, output) if isinstance(output, torch.Tensor) else output
        x = args[0]
        if x.dim() == 0 or kwargs.get("stable"):
            return output
        dim = kwargs.get("dim", args[dim_at] if len(args) > dim_at else -1)
        at = positions if positions.dim() == x.dim() else positions.unsqueeze(dim)
        distinct = bool((at.sort(dim).values.diff(dim=dim) != 0).all())
        named = x.gather(dim, at).reshape(positions.shape)
        return named if values is None else (values, named), positions.dtype, distinct

    return picked


UNIQUE: dict[str, Invariant] = {
    **dict.fromkeys(("sort", "argsort", "mode"), _picks(1)),
    **dict.fromkeys(("topk", "kthvalue"), _picks(2)),
    **dict.fromkeys(
        ("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided")
        + ("empty_permuted",),
        _form,
    ),
    **dict.fromkeys(
        ("cauchy", "exponential", "geometric", "log_normal", "normal.in_place", "uniform")
        + ("randn", "randn_like", "rand_like", "randint", "randint_like", "normal")
        + ("normal.number_mean", "nn.functional.rrelu", "nn.functional.alpha_dropout")
        + ("nn.functional.feature_alpha_dropout.with_train",),
        _finite,
    ),
    "bernoulli": _zero_or_one,
    **dict.fromkeys(
        ("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"), _dropped
    ),
    "nn.functional.fractional_max_pool2d": _pooled,
    "nn.functional.fractional_max_pool3d": _pooled_volumes,
    "nn.functional.scaled_dot_product_attention": _attended,
    "nn.functional.multi_head_attention_forward": _attended,
    "multinomial": _multinomial,
    "svd": _svd_v,
    "linalg.svd": _svd_vh,
    "svd_lowrank": _low_rank,
    "pca_lowrank": _principal,
    "linalg.eig": _eig,
    "linalg.eigvals": _eigvals,
    "linalg.eigh": _eigh,
    "qr": _qr,
    "linalg.qr": _qr,
}

_DRAWS = (_finite, _zero_or_one, _dropped, _pooled, _pooled_volumes, _multinomial, _low_rank) + (
    _principal,
)

# Entries whose gradients hang on the draw: they must run and have the right form.
RANDOM = {name for name, f in UNIQUE.items() if f in _DRAWS}


def is_random(name: str, args: tuple, kwargs: dict) -> bool:
    """Whether what a sample of an entry gives hangs on a draw."""
    dropped = UNIQUE.get(name) is _attended and _attention_dropout(args, kwargs) > 0
    return name in RANDOM or dropped
