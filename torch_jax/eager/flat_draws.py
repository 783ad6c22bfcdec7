"""Draws of eager code where JAX computes on the CPU: a few lengths serve all sizes.

JAX's random bits of element ``n`` depend on the key and on ``n`` alone
(https://docs.jax.dev/en/latest/jax.random.html, "partitionable"). So a draw of any shape is the
beginning of a longer vector, and code whose sizes change compiles a program for some lengths. A
permutation is what a longer one has below its length, where the numbers of both have as many bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import torch

from torch_jax.budgets import BITS_OF_A_PERMUTATION, ELEMENTS_OF_A_BUCKET
from torch_jax.core.active import unrecorded
from torch_jax.eager.signature import Signature
from torch_jax.memory.generators import default_generator
from torch_jax.memory.shared import Elsewhere, is_here, seen, taken

Call = Callable[..., Any]
_config: Any = jax.config


def kernel(sig: Signature, like: str, by_xla: Call) -> Call:
    """Return the kernel of an overload whose results have the shape of the argument ``like``."""
    at = sig.names.index(like)
    # dropout, and what takes a memory format, give results with the strides of their input
    keeps_strides = bool(sig.writes) or not {"memory_format", "train"}.isdisjoint(sig.by_name)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[at] if at < len(args) else kwargs.get(like)
        if not _is_longer_drawn(given, kwargs, keeps_strides):
            return by_xla(*args, **kwargs)
        try:
            given_args, named = sig.split(sig.named(args, kwargs) | {like: _flat(given)})
            result = by_xla(*given_args, **named)
        except (Elsewhere, RuntimeError, TypeError, ValueError):
            return by_xla(*args, **kwargs)  # its errors name the user's own shape
        if sig.writes:
            assert isinstance(given, torch.Tensor)
            return torch.ops.aten.copy_.default(given, _beginning(result, given))
        if isinstance(result, tuple):
            return tuple(_beginning(one, given) for one in result)
        return _beginning(result, given)

    return call


def on_cpu(sig: Signature, served: Call) -> Call:
    """Return a random operator for tensors of the CPU; ``served`` is its eager kernel."""
    drawn = {"generator": default_generator} if "generator" in sig.by_name else {}

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


def _is_longer_drawn(given: Any, kwargs: dict[str, Any], keeps_strides: bool) -> bool:
    """Return whether a call is drawn as the beginning of a longer vector."""
    if not is_here() or not _config.jax_threefry_partitionable:
        return False
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    count = given if isinstance(given, int) else math.prod(getattr(given, "shape", given))
    if isinstance(given, torch.Tensor):
        dtype = kwargs.get("dtype") or given.dtype
        keeps_strides &= kwargs.get("memory_format") in (None, torch.preserve_format)
        if not keeps_strides and not given.is_contiguous():
            return False
    if count <= 0 or (length := length_for(count)) == count or dtype.is_complex:
        return False
    bits = (count - 1).bit_length()
    return not isinstance(given, int) or (length - 1).bit_length() == bits <= BITS_OF_A_PERMUTATION


def _flat(given: Any) -> Any:
    """Return a longer vector in place of a tensor, or of a size, or a length of one."""
    if isinstance(given, int):
        return length_for(given)
    if not isinstance(given, torch.Tensor):
        return [length_for(math.prod(given))]
    flat = torch.zeros(length_for(given.numel()), dtype=given.dtype, device="cpu")
    flat[: given.numel()] = seen(given).reshape(-1)
    return taken(flat)


def _beginning(vector: torch.Tensor, like: Any) -> torch.Tensor:
    """Return the first elements of a vector as a tensor of a size, or with another's strides."""
    found = seen(vector)
    if isinstance(like, int):
        return taken(found[found < like])
    if isinstance(like, torch.Tensor):
        result = torch.empty_like(seen(like), dtype=found.dtype)
    else:
        result = torch.empty(like, dtype=found.dtype, device="cpu")
    return taken(result.copy_(found[: result.numel()].view(result.shape)))


def length_for(count: int) -> int:
    """Return a length for so many elements: a number of three bits times a power of two.

    Most shapes of models have such counts, and are drawn unchanged.

    >>> length_for(3), length_for(100), length_for(32 * 128 * 768) == 32 * 128 * 768
    (16, 112, True)
    """
    step = max(1 << max(count.bit_length() - 3, 0), ELEMENTS_OF_A_BUCKET)
    return -(-count // step) * step
