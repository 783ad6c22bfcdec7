"""Composites that ask for a truth value to raise an error, or to warn, and wait for nothing here.

``torch.istft`` asks whether its windows leave gaps, ``F.gaussian_nll_loss`` whether a variance is
negative (:mod:`torch_jax.patches.modules`), and ``torch.cov`` how many observations there
are beyond ``correction``. Each look would end a recording, and wait for an accelerator. What data
decides is checked when the recording has run; what sizes decide is known.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.active import ACTIVE
from torch_jax.memory import flags
from torch_jax.memory.shared import is_here
from torch_jax.memory.storage import PLAIN_TENSORS, held_by

_aten, _key = torch.ops.aten, torch._C.DispatchKey.CompositeImplicitAutograd
_ASKS = frozenset((_aten.equal.default, _aten._local_scalar_dense.default))
_istft, _cov = (functools.partial(op.default._op_dk, _key) for op in (_aten.istft, _aten.cov))


def answered(*given: Any) -> AbstractContextManager[Any]:
    """Answer the first truth value that a block asks for, but where a look costs nothing.

    Given are the answer and, if it is to be checked, the message and the type of the error.
    """
    return nullcontext() if is_here() else _Answered(*given)


class _Answered(pytorch.OperatorMode):
    def __init__(self, answer: bool, message: str = "", kind: type[Exception] = RuntimeError):
        super().__init__()
        self._answer, self._error, self._is_over = answer, (message, kind), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _ASKS or self._is_over or args[0].dtype is not torch.bool or args[0].dim():
            return func(*args, **(kwargs or {}))
        self._is_over = True  # hooks of the user's may ask, too
        if self._error[0]:
            if ACTIVE.tracer is not None or (check := flags.later()) is None:
                return func(*args, **(kwargs or {}))
            check(held_by(args[0].eq(self._answer)), *self._error)
        return self._answer


def istft(self, n_fft, hop_length=None, win_length=None, *given: Any, **options: Any):
    """Return the inverse of ``torch.stft``."""
    sizes = n_fft, hop_length, win_length
    if type(self) not in PLAIN_TENSORS:  # PyTorch decomposes what a graph is traced with in Python
        return _aten.istft.default.decompose(self, *sizes, *given, **options)
    hop, length = hop_length or n_fft // 4, win_length or n_fft
    shown = f"istft({list(self.shape)}, n_fft={n_fft}, hop_length={hop}, win_length={length})"
    with answered(False, f"{shown} window overlap add min: 1"):
        return _istft(self, *sizes, *given, **options)


def cov(self, *, correction=1, fweights=None, aweights=None):
    """Return the covariances of rows."""
    if fweights is not None or aweights is not None:
        return _cov(self, correction=correction, fweights=fweights, aweights=aweights)
    with answered((self.shape[1] if self.dim() == 2 else self.numel()) <= correction):
        return _cov(self, correction=correction)
