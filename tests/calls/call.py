"""A call: an expression over tensors that are made for each run, the same on any device."""

from __future__ import annotations

import random
from math import prod
from typing import Any, NamedTuple

import torch


class T(NamedTuple):
    """A tensor to be made, of values that follow from its form and its place in the call.

    ``layout`` is one of :data:`LAYOUTS`; ``values`` is ``"normal"``, ``"positive"`` (0.1 to 2),
    ``"unit"`` (0 to 1), ``"log"`` (log-probabilities along dim -1), ``"signs"`` (-1 or 1),
    ``"ties"`` (few different numbers), ``"mask"`` (of bools, or of numbers and -inf), ``"rows"``
    (a mask that leaves nothing of some rows) or ``"2:5"`` (integers from 2 to 4).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "plain"
    grad: bool = False
    values: str = "normal"

    def __repr__(self) -> str:
        given = zip(self._fields[1:], self[1:], T((), *_PLAIN)[1:], strict=True)
        options = [f"{name}={value!r}" for name, value, usual in given if value != usual]
        return f"T({', '.join([repr(self.shape), *options])})"


_PLAIN = ("float32", "plain", False, "normal")


class Call(NamedTuple):
    """An expression over named tensors, and the context in which it is evaluated."""

    expression: str
    tensors: dict[str, T]
    within: str = ""

    def __repr__(self) -> str:
        named = [f"{name}={tensor!r}" for name, tensor in self.tensors.items()]
        context = [f"within={self.within!r}"] if self.within else []
        return f"check({', '.join([repr(self.expression), *named, *context])})"


class Code(str):
    """A piece of an expression that stands as it is: ``Code("torch.float64")``."""

    __repr__ = str.__str__


def call(function: str, *args: Any, within: str = "", **kwargs: Any) -> Call:
    """The call ``function(*args, **kwargs)``, with a name for each :class:`T` in the arguments.

    >>> call("F.linear", T((2, 3)), T((4, 3), "float64"), None, within="no_grad")
    check('F.linear(a, b, None)', a=T((2, 3)), b=T((4, 3), dtype='float64'), within='no_grad')
    """
    tensors: dict[str, T] = {}
    parts = [_text(arg, tensors) for arg in args]
    parts += [f"{name}={_text(arg, tensors)}" for name, arg in kwargs.items()]
    return Call(f"{function}({', '.join(parts)})", tensors, within)


def _text(value: Any, tensors: dict[str, T]) -> str:
    if isinstance(value, T):
        name = chr(ord("a") + len(tensors))
        tensors[name] = value
        return name
    if isinstance(value, list):
        return f"[{', '.join(_text(v, tensors) for v in value)}]"
    if isinstance(value, tuple):
        return f"({', '.join(_text(v, tensors) for v in value)}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{k}={_text(v, tensors)}' for k, v in value.items())})"
    return repr(value)


# --- tensors ----------------------------------------------------------------------------------


def make(tensor: T, place: int) -> torch.Tensor:
    """The tensor on the CPU."""
    dtype = getattr(torch, tensor.dtype)
    generator = torch.Generator().manual_seed(place + 1)
    values = _values(tensor.values, tensor.shape, dtype, generator).to(dtype)
    return LAYOUTS[tensor.layout](values).detach().requires_grad_(tensor.grad)


def _values(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator):
    if kind in ("mask", "rows"):
        return _mask(shape, dtype, generator, rows=kind == "rows")
    if ":" in kind:
        low, high = map(int, kind.split(":"))
        return torch.randint(low, max(high, low + 1), shape, generator=generator)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        low = 1 if kind == "positive" else 0 if dtype == torch.uint8 else -4
        return torch.randint(low, 5, shape, generator=generator)
    unit = torch.rand(shape, generator=generator, dtype=torch.float64)
    normal = torch.complex128 if dtype.is_complex else torch.float64
    return {
        "normal": lambda: torch.randn(shape, generator=generator, dtype=normal),
        "positive": lambda: unit * 1.9 + 0.1,
        "unit": lambda: unit,
        "log": lambda: (unit * 3).log_softmax(-1) if shape else -unit,
        "signs": lambda: (unit < 0.5) * 2.0 - 1,
        "ties": lambda: (unit * 3).floor() - 1,
    }[kind]()


def _mask(shape, dtype: torch.dtype, generator: torch.Generator, rows: bool) -> torch.Tensor:
    kept = torch.rand(shape, generator=generator) < 0.6
    if shape and shape[-1]:
        kept[..., 0] = True
        if rows and kept.numel():
            kept[..., -1:, :] = False
    if dtype == torch.bool:
        return kept
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return noise.masked_fill(~kept, -torch.inf)


def _sliced(x: torch.Tensor) -> torch.Tensor:
    """Every second element of a longer last dim."""
    return x.repeat_interleave(2, -1)[..., ::2] if x.dim() else x


def _offset(x: torch.Tensor) -> torch.Tensor:
    """Behind three other elements of the storage."""
    storage = torch.zeros(x.numel() + 3, dtype=x.dtype)
    storage[3:] = x.flatten()
    return storage[3:].view(x.shape)


def _expanded(x: torch.Tensor) -> torch.Tensor:
    """The first of the first dim, all along the dim."""
    return x[:1].expand(x.shape) if x.dim() and x.shape[0] else x


def _permuted(x: torch.Tensor) -> torch.Tensor:
    """Dims in the opposite order in memory."""
    backwards = tuple(reversed(range(x.dim())))
    return x.permute(backwards).contiguous().permute(backwards)


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats.get(x.dim(), torch.contiguous_format))


LAYOUTS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "permuted": _permuted,
    "sliced": _sliced,
    "offset": _offset,
    "expanded": _expanded,
    "channels_last": _channels_last,
    "conj": lambda x: x.conj() if x.is_complex() else x,
}


# --- what the families draw with ---------------------------------------------------------------

FLOATS = ("float32", "float32", "float32", "float64", "bfloat16", "float16")


def chance(r: random.Random, probability: float) -> bool:
    """True as often as that."""
    return r.random() < probability


def size(r: random.Random, most: int = 5) -> int:
    """A size of a dim: small, often 1, seldom 0."""
    return r.choices((0, 1, r.randint(2, most)), (1, 8, 30))[0]


def sizes(r: random.Random, count: int, most: int = 4) -> tuple[int, ...]:
    """``count`` sizes."""
    return tuple(size(r, most) for _ in range(count))


def broadcast(r: random.Random, shape: tuple[int, ...], drop: bool = True) -> tuple[int, ...]:
    """A shape that broadcasts to ``shape``: some dims 1, and some of the first ones left out."""
    narrow = tuple(1 if chance(r, 0.25) else n for n in shape)
    return narrow[r.randint(1, len(shape)) :] if drop and shape and chance(r, 0.25) else narrow


def spoilt(r: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Seldom a shape with one size that may not fit."""
    if not shape or not chance(r, 0.03):
        return shape
    at = r.randrange(len(shape))
    return (*shape[:at], shape[at] + 1, *shape[at + 1 :])


def layout(r: random.Random, rank: int, dtype: str = "float32") -> str:
    """A layout, more often than not the plain one."""
    if chance(r, 0.55):
        return "plain"
    fitting = ["transposed", "permuted", "sliced", "offset", "expanded"]
    fitting += ["channels_last"] * 3 if rank in (4, 5) else []
    fitting += ["conj"] * 3 if dtype.startswith("complex") else []
    return r.choice(fitting)


def tensor(
    r: random.Random,
    shape: tuple[int, ...],
    dtype: str = "float32",
    values: str = "normal",
    grad: bool | None = None,
) -> T:
    """A tensor in any layout, which requires gradients more often than not where it can."""
    able = dtype.startswith(("float", "bfloat", "complex"))
    wanted = able and (chance(r, 0.6) if grad is None else grad)
    return T(spoilt(r, shape), dtype, layout(r, len(shape), dtype), wanted, values)


def integers(r: random.Random, shape: tuple[int, ...], low: int, high: int, dtype="int64") -> T:
    """Integers from ``low`` to ``high - 1``; none where there are none."""
    shape = shape if high > low or prod(shape) == 0 else (0,) * len(shape)
    return T(shape, dtype, layout(r, len(shape)), False, f"{low}:{high}")


def within(r: random.Random, *others: str) -> str:
    """The context of a call: none, mostly."""
    return "" if chance(r, 0.75) else r.choice(("no_grad", "inference_mode", *others))


def some(r: random.Random, **options: Any) -> dict[str, Any]:
    """A part of the options, each left out as often as not."""
    return {name: value for name, value in options.items() if chance(r, 0.5)}
