"""Draws of eager code where JAX computes on the CPU: a few lengths serve all sizes.

JAX's random bits of element ``n`` depend on the key and on ``n`` alone
(https://docs.jax.dev/en/latest/jax.random.html, "partitionable"). So a draw of any shape is the
beginning of a longer vector, and code whose sizes change compiles a program for some lengths. What
is drawn by rows has more rows, or a single row has zeros behind its own. A permutation is what a
longer one has below its length, where the numbers of both have as many bits. Draws in place, by
which models are made, fill tensors of all sizes by pieces of one length.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import torch

from torch_jax.budgets import BITS_OF_A_PERMUTATION, ELEMENTS_OF_A_BUCKET, ELEMENTS_OF_A_PIECE
from torch_jax.core.active import ACTIVE, unrecorded
from torch_jax.eager.signature import Signature
from torch_jax.memory import generators
from torch_jax.memory.shared import Elsewhere, is_here, seen, taken

Call = Callable[..., Any]
_config: Any = jax.config


def kernel(sig: Signature, like: str, unit: str, by_xla: Call) -> Call:
    """Return the kernel of an overload that draws like the argument ``like``.

    ``unit`` says what a draw is made of: an element, a row, or a row of weights.
    """
    if sig.writes:
        return _filling(sig, by_xla)
    at = sig.names.index(like)
    # dropout, and what takes a memory format, give results with the strides of their input
    keeps_strides = not {"memory_format", "train"}.isdisjoint(sig.by_name)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[at] if at < len(args) else kwargs.get(like)
        if not _is_longer_drawn(given, unit, kwargs, keeps_strides):
            return by_xla(*args, **kwargs)
        try:
            named = sig.named(args, kwargs)
            tensors = {n for n, one in named.items() if isinstance(one, torch.Tensor) and one.dim()}
            longer = {n: _longer(named[n], given, unit) for n in tensors | {like}}
            given_args, rest = sig.split(named | longer)
            result = by_xla(*given_args, **rest)
        except (Elsewhere, RuntimeError, TypeError, ValueError):
            return by_xla(*args, **kwargs)  # its errors name the user's own shape
        if isinstance(result, tuple):
            return tuple(_beginning(one, given, unit) for one in result)
        return _beginning(result, given, unit)

    return call


def _filling(sig: Signature, by_xla: Call) -> Call:
    """Return the kernel of an overload that writes its first argument: it draws in pieces."""

    def call(target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        others = any(isinstance(one, torch.Tensor) for one in (*args, *kwargs.values()))
        if others or not _is_filled_in_pieces(target):
            return by_xla(target, *args, **kwargs)
        named = sig.named((target, *args), kwargs)
        words = _when_asked(named.pop("generator", None))
        drawn = torch.empty(target.numel(), dtype=target.dtype, device="cpu")
        piece = taken(torch.empty(ELEMENTS_OF_A_PIECE, dtype=target.dtype, device="cpu"))
        given, rest = sig.split(named | {sig.names[0]: piece})
        try:
            for number, part in enumerate(drawn.split(ELEMENTS_OF_A_PIECE)):
                with generators.drawn(lambda number=number: generators.of_piece(words(), number)):
                    by_xla(*given, **rest)
                part.copy_(seen(piece)[: len(part)])
        except (RuntimeError, TypeError, ValueError):
            with generators.drawn(words):  # its errors name the user's own shape
                return by_xla(target, *args, **kwargs)
        return torch.ops.aten.copy_.default(target, taken(drawn.view(target.shape)))

    return call


def _are_elements_alone() -> bool:
    """Return whether an element depends on its place, and not on how many are drawn."""
    return is_here() and _config.jax_threefry_partitionable


def _is_filled_in_pieces(target: torch.Tensor) -> bool:
    if not _are_elements_alone() or not target.numel():
        return False
    try:
        seen(target)
    except Elsewhere:  # on a mesh no device draws what the others hold
        return False
    return True


def _when_asked(generator: Any) -> Callable[[], Any]:
    """Return a function that makes one draw, at its first call: none where an operator refuses."""
    outer = ACTIVE.words

    @functools.cache
    def words() -> Any:
        with generators.drawn(outer):
            return generators.draw(generator)

    return words


def on_cpu(sig: Signature, served: Call) -> Call:
    """Return a random operator for tensors of the CPU; ``served`` is its eager kernel."""
    drawn = {"generator": generators.default_generator} if "generator" in sig.by_name else {}

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs |= drawn
        with unrecorded():
            given = list(map(_taken, args))
            result = served(*given, **{name: _taken(value) for name, value in kwargs.items()})
        for name, old, new in zip(sig.names, args, given, strict=False):
            if name in sig.writes:
                old.copy_(seen(new))
        return tuple(map(seen, result)) if isinstance(result, tuple) else seen(result)

    return call


def _taken(value: Any) -> Any:
    """Return a tensor of the device with a CPU tensor's elements, in memory of its own."""
    return taken(value.clone()) if isinstance(value, torch.Tensor) else value


def _is_longer_drawn(given: Any, unit: str, kwargs: dict[str, Any], keeps_strides: bool) -> bool:
    """Return whether a call is drawn as the beginning of a longer one."""
    if not _are_elements_alone():
        return False
    if isinstance(given, int):
        bits = (given - 1).bit_length()
        length = length_for(given)
        return length > given > 0 and (length - 1).bit_length() == bits <= BITS_OF_A_PERMUTATION
    if isinstance(given, torch.Tensor):
        keeps_strides &= kwargs.get("memory_format") in (None, torch.preserve_format)
        if not keeps_strides and not given.is_contiguous() and unit == "element":
            return False
    shape = _shape(given, unit)
    return 0 not in shape and _longer_shape(shape, unit) != shape


def _shape(given: Any, unit: str) -> tuple[int, int]:
    """Return the rows and the columns of what is drawn; an element is a row."""
    shape = tuple(getattr(given, "shape", given))
    columns = shape[-1] if shape and unit != "element" else 1
    return math.prod(shape) // max(columns, 1), columns


def _longer_shape(shape: tuple[int, int], unit: str) -> tuple[int, int]:
    rows, columns = shape
    if unit == "element":
        return length_for(rows), 1
    if rows == 1:
        return 1, length_for(columns, 1)
    return length_for(rows, 1), columns


def _longer(value: Any, given: Any, unit: str) -> Any:
    """Return a longer tensor, size or length in place of a value like the given one."""
    if isinstance(value, int):
        return length_for(value)
    if not isinstance(value, torch.Tensor):
        return [length_for(math.prod(value))]
    if not isinstance(given, torch.Tensor) or value.shape != given.shape:
        raise Elsewhere
    rows, columns = _shape(value, unit)
    plain = seen(value).reshape(rows, columns)
    longer = plain.new_zeros(_longer_shape((rows, columns), unit))
    longer[:rows, :columns] = plain
    longer[rows:, :columns] = plain[-1:]  # no row is one that is refused
    if rows > 1 and unit != "element":
        return taken(longer)
    flat = taken(longer.view(-1))
    # as in Categorical, whose single row is a view of a vector: it has the same program
    return flat.view(1, -1) if unit != "element" and value.dim() > 1 else flat


def _beginning(drawn: torch.Tensor, like: Any, unit: str) -> torch.Tensor:
    """Return what was drawn for a size, a length, or a tensor, whose strides an element keeps."""
    found = seen(drawn)
    if isinstance(like, int):
        return taken(found[found < like])
    if unit != "element":
        (rows, columns), width = _shape(like, unit), found.shape[-1]
        kept = columns if unit == "row" else width
        result = found.reshape(-1, width)[:rows, :kept].clone()
        return taken(result.view(*like.shape[:-1], kept))
    if isinstance(like, torch.Tensor):
        result = torch.empty_like(seen(like), dtype=found.dtype)
    else:
        result = torch.empty(like, dtype=found.dtype, device="cpu")
    return taken(result.copy_(found[: result.numel()].view(result.shape)))


def length_for(count: int, least: int = ELEMENTS_OF_A_BUCKET) -> int:
    """Return a length for so many elements: a number of three bits times a power of two.

    Most shapes of models have such counts, and are drawn unchanged.

    >>> length_for(3), length_for(100), length_for(32 * 128 * 768) == 32 * 128 * 768
    (16, 112, True)
    """
    step = max(1 << max(count.bit_length() - 3, 0), least)
    return -(-count // step) * step
