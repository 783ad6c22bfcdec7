"""A recorded operator by PyTorch's CPU kernel, on memories that are CPU tensors.

An entry knows its operator and, for each argument, its place: a view of a memory, a number, or a
constant. So the recorded operator can be called as PyTorch calls it, and nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from torch_jax.eager import by_torch
from torch_jax.eager.entry import Entry, Number, View
from torch_jax.eager.meta import Output
from torch_jax.eager.signature import DTYPE, Signature
from torch_jax.memory import dtypes, generators, geometry, shared, windows


class OnHost:
    """The call of an entry."""

    def __init__(self, entry: Entry, sig: Signature, run: Callable[..., Any]):
        self.fits = False  # whether results have had the forms of the entry's: after the first call
        self._sig, self._placed, self._run = sig, entry.placed, run
        self._outputs, self._written, self._words = entry.outputs, entry.slots, entry.words
        self._default = torch.get_default_dtype()  # which floats made of integers have

    def __call__(self, memories: list[Any], forms: Iterable[Any]) -> list[torch.Tensor] | None:
        """Return the new memories, as CPU tensors; None where no CPU kernel gives these forms.

        To be called within ``pytorch.kernels_alone()``, with the aval, shape and dtype of each
        result. Operands are CPU tensors, Python's numbers, and integers as NumPy's arrays; those
        that are written are the operator's own.
        """
        if torch.get_default_dtype() is not self._default:
            return None
        kinds = self._sig.by_name
        named = {n: _filled(kinds.get(n), one, memories) for n, one in self._placed.items()}
        args, kwargs = self._sig.split(named)
        try:
            with generators.drawn(None if self._words is None else memories[self._words]):
                result = self._run(*args, **kwargs)
        except Exception as error:
            if by_torch.is_elsewhere(error):
                return None
            raise
        results = [result] if len(self._sig.returns) == 1 else list(result or ())
        fresh = [one for one, name in zip(results, self._sig.returns, strict=False) if name is None]
        found = _memories(self._outputs, fresh) + [memories[slot] for slot in self._written]
        self.fits = self.fits or _fit(found, list(forms))
        return found if self.fits else None


def _filled(kind: Any, placed: Any, memories: list[Any]) -> Any:
    if isinstance(placed, View):
        return _view(placed, memories)
    if isinstance(placed, Number):
        number = memories[placed.slot]
        return number.tolist() if isinstance(number, np.ndarray | torch.Tensor) else number
    if isinstance(placed, list):
        return [_filled(kind, one, memories) for one in placed]
    return dtypes.to_torch(placed) if kind == DTYPE and placed is not None else placed


def _view(view: View, memories: list[Any]) -> Any:
    memory, offset = memories[view.slot], view.offset
    if not isinstance(memory, torch.Tensor):
        return memory  # a number that came as a tensor of the CPU
    if view.starts is not None:
        offset = windows.offset(view.window, memories[view.starts], tuple(memory.shape))
    dtype = dtypes.to_torch(view.dtype)
    if memory.shape == view.shape and not offset and memory.dtype == dtype:
        if geometry.is_row_major(view.shape, view.stride):
            return memory
    return shared.view(memory, dtype, view.shape, view.stride, offset)


def _memories(specs: list[Any], results: list[Any]) -> list[Any]:
    found: list[Any] = []
    for spec, result in zip(specs, results, strict=True):
        if isinstance(spec, list):
            found += _memories(spec, list(result))
        elif isinstance(spec, Output):
            found.append(_memory(spec, result))
    return found


def _memory(spec: Output, result: torch.Tensor) -> torch.Tensor:
    """Return the memory behind a result, as :func:`torch_jax.eager.entry.emit` lays it out."""
    plain = result.resolve_conj().resolve_neg()
    if spec.stride is not None and plain.numel():
        plain = plain.permute(geometry.memory_order(spec.size, spec.stride) or ())
    return plain.contiguous()


def _fit(found: list[Any], forms: list[Any]) -> bool:
    """Return whether memories have the forms that a graph's results have."""
    return len(found) == len(forms) and all(
        isinstance(one, torch.Tensor)
        and tuple(one.shape) == tuple(shape)
        and dtypes.to_jax(one.dtype) == dtype
        for one, (_, shape, dtype) in zip(found, forms, strict=True)
    )
