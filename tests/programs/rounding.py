"""The results that an expression may have, where each operator rounds a little differently.

The expression runs on the CPU several times, and each operator that rounds has its results moved by
a few units in the last place, at random; twice denormal numbers are taken for zero. Elements that
stay as they are in all runs are certain, infinities, NaN and comparisons among them: a program must
give these. Of the others the runs say how far a program may be off.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

RUNS = 12
SLACK = 4.0  # an error may be so many times that of the runs
_UNITS = {torch.float32: 4.0, torch.float64: 8.0, torch.bfloat16: 1.0, torch.float16: 1.0}
_ROUNDED_ONCE = frozenset("add sub mul rsub".split())  # nothing is lost where the result is exact
_EXACT = frozenset(
    "_efficientzerotensor _to_copy clone copy detach abs neg sign sgn floor ceil round trunc "
    "frac where maximum minimum fmax fmin clamp clamp_min clamp_max relu hardtanh masked_fill "
    "copysign amax amin max min sort topk gather index_select index cat stack flip roll "
    "constant_pad_nd fill zero zeros_like fmod ones_like threshold_backward hardtanh_backward "
    "nan_to_num full_like new_zeros zeros full ones scatter tril triu cummax cummin heaviside "
    "repeat expand slice_backward select_backward value_selecting_reduction_backward "
    "masked_fill lift_fresh scalar_tensor empty_like remainder median kthvalue index_put "
    "positive hardshrink softshrink empty argmax argmin constant_pad resolve_conj real imag "
    "view_as_real conj_physical arange repeat_interleave _local_scalar_dense masked_scatter "
    "masked_select unfold_backward eye isclose evenly_distribute_backward set_ resize_ "
    "as_strided index_fill empty_strided new_empty new_full new_ones new_empty_strided eq ne "
    "lt le gt ge".split()
)
_SUMS = frozenset(
    "sum mean std var std_mean var_mean cumsum cumprod prod logsumexp norm linalg_vector_norm "
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data "
    "native_layer_norm native_layer_norm_backward nansum logcumsumexp _logcumsumexp addcmul "
    "addcdiv lerp mm dot lgamma digamma angle tan sin cos erfinv atanh acosh logit log log2 "
    "log10 log1p scatter_add".split()
)
_CANCELLING = frozenset(
    "gelu gelu_backward mish_backward lgamma digamma mish elu erfc log_sigmoid_forward".split()
)
_OF_SQUARES = frozenset(
    "gelu mish std var norm linalg_vector_norm native_layer_norm hypot addcmul addcdiv".split()
)
_OF_SIGNS = frozenset(("signbit", "copysign"))
_JOINED = frozenset("mul exp square pow exp2 sum".split())
_JOINS = re.compile(r" [-+/] |\*\*|sum|mean|std|var|norm|log|sqrt|exp|add|sub|lerp|rsub|pow|grad")
_EITHER_ZERO = re.compile(r"max|min|clamp|relu|hardtanh|sort|topk|kthvalue|median|sum|mean|angle")


class Moved(TorchDispatchMode):
    """Results of operators that round are moved by a few units in the last place."""

    def __init__(self, seed: int, text: str):
        super().__init__()
        self.joins = bool(_JOINS.search(text))
        self.odd = seed % 2 == 1
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        written = name.endswith("_") and not name.startswith("__")
        name = name.removesuffix("_") if written else name
        if name in _OF_SIGNS:  # that of a NaN is any
            args = tuple(self._turned(one) for one in args)
        if func.is_view or (name in _EXACT and func._overloadname != "decimals"):
            out = func(*args, **kwargs)
            return out if func.is_view or written else self._either_zero(name, out)
        before = torch.utils._pytree.tree_map(self._copied, (args, kwargs))
        if name in _SUMS and not written:
            args = torch.utils._pytree.tree_map(self.moved, args)
        out = func(*args, **kwargs)
        if not written and isinstance(out, torch.Tensor):
            out = self._by_cause(name, args, out)
        if name == "native_layer_norm":
            out = tuple(self._by_cause(name, args, one) for one in out)
        exact = None
        if name in _ROUNDED_ONCE:
            exact = _in_double(func, written, *before)
        if written:
            moved = self.moved(out, exact)
            return out.copy_(moved) if moved is not out else out
        return torch.utils._pytree.tree_map(lambda one: self.moved(one, exact), out)

    def moved(self, x: Any, exact: Any = None) -> Any:
        """Return a tensor moved, but where it is exact."""
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        if not x.numel():
            return x
        real = x.dtype.to_real()
        shape = x.shape
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        drawn = drawn + drawn.sign()  # between one and two
        drawn = drawn * (torch.rand(shape, generator=self.generator) < 0.7)
        factor = 1 + drawn / 2 * _UNITS[real] * torch.finfo(real).eps
        if x.is_complex():
            other = torch.rand(shape, generator=self.generator, dtype=torch.float64) * 2 - 1
            factor = torch.complex(factor, other * _UNITS[real] * torch.finfo(real).eps)
        wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
        moved = torch.where((wide == 0) | ~torch.isfinite(wide), x, (wide * factor).to(x.dtype))
        if exact is not None and exact.shape == x.shape:
            moved = torch.where(exact == wide, x, moved)
        return moved

    def _by_cause(self, name: str, args: Any, out: torch.Tensor) -> torch.Tensor:
        """Return the result with what is known to differ in it."""
        x = args[0] if args and isinstance(args[0], torch.Tensor) else out
        info = torch.finfo(out.dtype.to_real()) if out.dtype.is_floating_point else None
        if name in _OF_SQUARES and info is not None and x.numel() and not x.is_complex():
            # The CPU squares numbers of float32 in double precision, XLA and CUDA in their own.
            size = x.double().abs().nan_to_num(0, inf).amax()
            if (size > info.max**0.5 / 8 or 0 < size < info.tiny**0.5 * 8) and self.odd:
                return torch.full_like(out, float("nan"))
        if name in _CANCELLING and info is not None:
            drawn = torch.rand(out.shape, generator=self.generator).to(out.dtype) * 2 - 1
            return out + drawn * _UNITS[out.dtype] * info.eps * x
        if name in _JOINED and info is not None and self.joins and self.odd:
            given = [one for one in args if isinstance(one, torch.Tensor)]
            lost = (torch.isinf(out) | (out.abs() < 2 * info.tiny)) & ~out.isnan()
            for one in given:
                whole = torch.isfinite(one) & (one != 0)
                lost = lost & (whole if name != "sum" else torch.isfinite(one).all())
            return torch.where(lost, float("nan"), out)
        return out

    def _either_zero(self, name: str, out: Any) -> Any:
        """Return limits with another sign where they are zero: of two zeros any is the greater."""
        if not isinstance(out, torch.Tensor) or not _EITHER_ZERO.search(name):
            return out
        if not out.is_floating_point():
            return out
        turned = torch.rand(out.shape, generator=self.generator) < 0.5
        return torch.where((out == 0) & turned, -out, out)

    def _turned(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        signs = torch.rand(x.shape, generator=self.generator) - 0.5
        return torch.where(x.isnan(), torch.copysign(x, signs.to(x.dtype)), x)

    @staticmethod
    def _copied(x: Any) -> Any:
        return x.clone() if isinstance(x, torch.Tensor) else x


def _in_double(func: Any, written: bool, args: Any, kwargs: Any) -> Any:
    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, torch.Tensor) and not x.is_complex() else x

    args, kwargs = torch.utils._pytree.tree_map(wide, (args, kwargs))
    if any(isinstance(x, torch.Tensor) and x.is_complex() for x in args):
        return None
    return func(*args, **kwargs)


def runs_of(run: Callable[[], list[torch.Tensor]], text: str = "") -> list[list[torch.Tensor]]:
    """Return the results of all runs; of the first nothing is moved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [run()]
        for seed in range(RUNS):
            with Moved(seed, text):
                found.append(run())
        torch.set_flush_denormal(True)
        try:
            found.append(run())
            with Moved(RUNS, text):
                found.append(run())
        finally:
            torch.set_flush_denormal(False)
    return found


def promises_zeros(text: str) -> bool:
    """Return whether the operators of a text say which of two zeros they give."""
    return not _EITHER_ZERO.search(text)


def differs(actual: torch.Tensor, runs: list[torch.Tensor], signs: bool = True) -> str:
    """Return how a result differs from what all runs allow, or nothing."""
    expected = runs[0]
    for what in ("dtype", "shape"):
        one, other = getattr(actual, what), getattr(expected, what)
        if one != other:
            return f"{what} {one}, not {other}"
    if not expected.numel():
        return ""
    if any(run.shape != expected.shape for run in runs):
        return ""
    wrong = _wrong(actual, runs, signs)
    return f"{actual.tolist()}, not {expected.tolist()}" if wrong.any() else ""


def _wrong(actual: torch.Tensor, runs: list[torch.Tensor], signs: bool) -> torch.Tensor:
    expected = runs[0]
    if not (expected.is_floating_point() or expected.is_complex()):
        certain = torch.stack([run == expected for run in runs]).all(0)
        return certain & (actual != expected)
    if expected.is_complex():
        parts = [torch.view_as_real(one) for one in (actual, *runs)]
        scale = expected.abs().unsqueeze(-1).expand(parts[0].shape)
        finite = torch.isfinite(expected).unsqueeze(-1)
        return finite & _wrong_floats(parts[0], parts[1:], False, scale)
    return _wrong_floats(actual, runs, signs, expected.abs())


def _wrong_floats(actual: Any, runs: list[Any], signs: bool, scale: Any) -> torch.Tensor:
    info = torch.finfo(actual.dtype)
    units = 2 * _UNITS[actual.dtype] * info.eps
    one, *others = [run.double() for run in (actual, *runs)]
    kinds = torch.stack([_kind(run) for run in others])
    certain = (kinds == kinds[0]).all(0)
    wrong = certain & (_kind(one) != kinds[0])
    finite = certain & ~wrong & torch.isfinite(others[0])
    spread = torch.stack([(run - others[0]).abs() for run in others[1:]]).amax(0)
    allowed = SLACK * spread + units * scale.double() + 2 * info.tiny
    allowed = torch.where(others[0].abs() + allowed > info.max, info.max, allowed)
    wrong |= finite & ((one - others[0]).abs() > allowed)
    if signs:
        zero = torch.stack([(run == 0) & (run.signbit() == others[0].signbit()) for run in others])
        wrong |= zero.all(0) & (one == 0) & (one.signbit() != others[0].signbit())
    return wrong


def _kind(x: torch.Tensor) -> torch.Tensor:
    return x.isnan() + 2 * x.isposinf() + 3 * x.isneginf()
