"""Functions whose results are differentiated outside of them: a compiled model in a training loop.

Where a traced function returns tensors that require gradients, PyTorch's backward pass is traced
right behind the forward pass, from gradients that are inputs. The jaxpr is then cut in two: the
first part gives the results and what the second part needs of it, the second the gradients. The
second is compiled when ``backward()`` first comes by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch
from torch.autograd.function import once_differentiable

from torch_jax._private.jaxprs import core
from torch_jax.compiler.jaxpr import Cut
from torch_jax.core.tracers import is_traced
from torch_jax.core.x64 import x64
from torch_jax.memory import storage, transfer
from torch_jax.memory.form import Form
from torch_jax.memory.storage import is_jax, memory_of

_NOTHING = torch.empty(0)


class Pullback:
    """The backward pass of one trace, as it is found while tracing.

    Attributes:
      inputs: the tensors that gradients flow to.
      positions: which leaves of the result they flow from.
      saves: whether a graph of PyTorch's would have saved a tensor.
      saved: which of the tensors that were there before are among these.
      saved_results: the same of the results that gradients flow from.
      arrays: traced arrays of the gradients, for the inputs that have one.
    """

    def __init__(
        self,
        capture: Any,
        leaves: list[Any],
        arguments: list[Any],
        known: Sequence[Any],
        saved: set[int],
    ):
        """Differentiate the ``leaves`` of a result, by what was there before.

        ``saved`` are the ids of the storages that the nodes behind them have saved.
        """
        self.saves = bool(saved)
        self.positions = [i for i, leaf in enumerate(leaves) if _is_differentiable(capture, leaf)]
        outputs = [leaves[i] for i in self.positions]
        self.inputs = inputs_of(capture, arguments, known)
        candidates = {id(t): t for t in (*self.inputs, *arguments, *known) if _is_tensor(t)}
        self.saved = [t for t in candidates.values() if id(t.untyped_storage()) in saved]
        self.saved_results = [
            at for at, o in enumerate(outputs) if id(o.untyped_storage()) in saved
        ]
        if not self.inputs:
            self.positions = []
            outputs = []
        self.first_input = len(capture.inputs)
        given = [
            storage.wrap(
                capture.new_input("gradient", i, o.shape, transfer.value_of(o).dtype), o.dtype
            )
            for i, o in enumerate(outputs)
        ]
        self.count = len(given)
        found: Any = ()
        if outputs:
            found = torch.autograd.grad(outputs, self.inputs, given, allow_unused=True)
        self.forms = [None if g is None else _form(capture, g) for g in found]
        self.arrays = [_array(capture, g) for g in found if g is not None]

    def wrap(self, arrays: list[jax.Array]) -> list[torch.Tensor | None]:
        """Gradients as tensors."""
        rest = iter(arrays)
        return [None if g is None else _wrapped(next(rest), g) for g in self.forms]


def inputs_of(capture: Any, arguments: Sequence[Any], known: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that gradients flow to, if they flow at all."""
    candidates = {
        id(t): t
        for t in (*arguments, *capture.leaves.values(), *known)
        if _is_tensor(t) and t.requires_grad
    }
    return [t for t in candidates.values() if capture.input_of(t.untyped_storage()) is not None]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_jax(value)


def _is_differentiable(capture: Any, leaf: Any) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.grad_fn is None or not is_jax(leaf):
        return False
    return is_traced(memory_of(leaf)) and capture.input_of(leaf.untyped_storage()) is None


def _is_own(capture: Any, gradient: torch.Tensor) -> bool:
    memory = memory_of(gradient)
    plain = not gradient.is_conj() and not gradient.is_neg()
    return plain and is_traced(memory) and capture.input_of(gradient.untyped_storage()) is None


def _form(capture: Any, gradient: torch.Tensor) -> Form:
    if _is_own(capture, gradient):
        return Form.of(gradient)
    return Form.of(torch.empty(gradient.shape, dtype=gradient.dtype, device="meta"))


def _array(capture: Any, gradient: torch.Tensor) -> jax.Array:
    return memory_of(gradient) if _is_own(capture, gradient) else transfer.value_of(gradient)


def _wrapped(array: jax.Array, form: Form) -> torch.Tensor:
    tensor = storage.wrap(array, form.dtype)
    return storage.restride(tensor, form.size, form.stride, form.offset)


class Backward:
    """The backward pass of one trace, compiled when it is first needed."""

    def __init__(self, pullback: Pullback, cut: Cut):
        self.pullback, self.cut = pullback, cut
        self._run: Any = None

    def __call__(self, saved: list[jax.Array], gradients: Sequence[torch.Tensor]) -> list[Any]:
        """The gradients of the inputs."""
        if self._run is None:
            self._run = jax.jit(core.jaxpr_as_fun(self.cut.backward))
        with x64():
            arrays = self._run(*saved, *map(transfer.value_of, gradients))
        return self.pullback.wrap(arrays)


class Connected(torch.autograd.Function):
    """Connects a call's results with what they were computed from."""

    @staticmethod
    def forward(
        ctx: Any, backward: Backward, saved: list, results: list, tensors: list, *inputs: Any
    ) -> Any:
        """The results, unchanged; ``tensors`` are those of before that the backward pass saves."""
        ctx.backward_pass, ctx.saved = backward, saved
        pullback = backward.pullback
        if pullback.saves:
            # PyTorch then raises where one was written since, or the graph is gone through again
            more = [results[at] for at in pullback.saved_results]
            ctx.save_for_backward(*tensors, *more, _NOTHING)
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of the inputs, by the compiled backward pass."""
        if ctx.backward_pass.pullback.saves:
            ctx.saved_tensors  # noqa: B018, asked for what it raises
        return None, None, None, None, *ctx.backward_pass(ctx.saved, gradients)
