"""Tensors that a compiled call gives out: as views, with versions and histories as the run left.

A template (:mod:`torch_jax.capture.templates`) says so of each tensor that a function returned or
kept; what is not understood makes the function one whose Python runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from torch_jax.capture import border
from torch_jax.core.tracers import NotTraceableError

_alias = torch.ops.aten.alias.default
_ANCHOR = torch.empty(0, requires_grad=True)


class Marks(NamedTuple):
    """What a new tensor is beyond its elements.

    Attributes:
      version: how often it was written.
      is_view: whether PyTorch takes it for a view.
      is_spent: whether a backward pass went through its graph, so that no other can.
    """

    version: int
    is_view: bool
    is_spent: bool

    def put_on(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, made what it is to be."""
        if self.version:
            increment_version([tensor] * self.version)
        if self.is_spent:
            with torch.enable_grad():
                tensor = Spent.apply([tensor], _ANCHOR)
        return _alias(tensor) if self.is_view else tensor


PLAIN = Marks(0, False, False)


class View(NamedTuple):
    """A new tensor that shares memory with another, and counts writes with it.

    Attributes:
      source: the leaf of the other tensor.
      place: size, stride and offset.
      is_view: whether PyTorch takes it for a view; else it is detached.
      number: which tensor object it is.
      is_detached: whether it is a view of what was detached of the other.
    """

    source: Any
    place: tuple[Any, Any, int]
    is_view: bool
    number: int
    is_detached: bool = False

    def build(self, source: torch.Tensor) -> torch.Tensor:
        """The tensor of one call."""
        if self.is_view:
            source = source.detach() if self.is_detached else source
            return source.as_strided(*self.place)
        source = source.detach()
        return source if _place(source) == self.place else source.as_strided(*self.place).detach()

    @staticmethod
    def of(leaf: Any, source: torch.Tensor, value: torch.Tensor, number: int) -> View:
        """How ``value`` is made of ``source``, which ``leaf`` stands for."""
        plain = not (value.is_conj() or value.is_neg() or source.is_conj() or source.is_neg())
        if not plain or value.dtype != source.dtype:
            refuse("a view of other numbers than those in its memory")
        return View(leaf, _place(value), value._is_view(), number)


def marks_of(value: torch.Tensor, is_connected: bool) -> Marks:
    """What there is to say of a new tensor; ``is_connected`` with what it was computed from."""
    if type(value) is not torch.Tensor or value.__dict__:
        refuse(f"a new {type(value).__name__}, or one with attributes")
    if value.is_inference() != torch.is_inference_mode_enabled():
        refuse("a tensor of inference mode")
    is_spent = False
    if value.requires_grad and not is_connected:
        is_spent = value.grad_fn is not None and border.is_spent(value)
        if not is_spent:
            refuse("a new tensor of which gradients are wanted, in another place than its result")
    return Marks(0 if value.is_inference() else value._version, value._is_view(), is_spent)


def refuse(what: str) -> None:
    """Raise: Python has to run at each call."""
    raise NotTraceableError(
        f"under torch_jax.jit this Python has to run at each call: it gives out {what}"
    )


def _place(tensor: torch.Tensor) -> tuple[Any, Any, int]:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


class Spent(torch.autograd.Function):
    """The history of a tensor whose graph a backward pass has gone through."""

    @staticmethod
    def forward(ctx: Any, made: list[torch.Tensor], anchor: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        return made[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Raise as PyTorch does."""
        raise RuntimeError(
            "Trying to backward through the graph a second time (or directly access saved tensors "
            "after they have already been freed): the function under torch_jax.jit went through "
            "it. Specify retain_graph=True there if it is needed again."
        )
