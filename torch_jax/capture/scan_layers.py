"""``torch_jax.scan_layers``: many identical layers, compiled once.

A loop over N layers becomes N copies of a layer in the program, and compile time grows with N. Here
the layer is traced once, forward and backward, and XLA loops over the layers' stacked parameters
(``jax.lax.scan``, https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import noop_context_fn

from torch_jax._private import pytorch
from torch_jax._private.jaxprs import core
from torch_jax.capture.state.places import PLAIN, same
from torch_jax.compiler import jaxpr
from torch_jax.core.active import ACTIVE, in_whole_function
from torch_jax.core.x64 import x64
from torch_jax.memory import storage, transfer
from torch_jax.memory.dtypes import to_jax
from torch_jax.memory.storage import is_jax, memory_of

ContextFn = Callable[[], tuple[Any, Any]]


def scan_layers(
    modules: Sequence[torch.nn.Module],
    x: torch.Tensor,
    *args: Any,
    checkpoint: bool = False,
    context_fn: ContextFn | None = None,
) -> torch.Tensor:
    """``for m in modules: x = m(x, *args)``, with one compiled body in a function under ``jit``.

    Outside of :func:`torch_jax.jit` it is that loop, each layer under ``torch.utils.checkpoint`` if
    asked for.

    Args:
      modules: layers of one class and one configuration; only parameters and buffers differ.
      x: the first layer's input, of the shape and dtype of every layer's output.
      *args: further arguments, the same for all layers.
      checkpoint: compute each layer again in the backward pass instead of keeping what it needs.
      context_fn: what is kept all the same, as for ``torch.utils.checkpoint``: one of
        :func:`torch_jax.checkpoint_policy`, or of ``create_selective_checkpoint_contexts``.

    Raises:
      ValueError: the layers are not alike, or change the shape or dtype of ``x``.

    >>> import torch_jax
    >>> layers = [torch.nn.Linear(3, 3).to("jax") for _ in range(4)]
    >>> run = torch_jax.jit(lambda x: scan_layers(layers, x))
    >>> x = torch.ones(2, 3, device="jax")
    >>> torch.allclose(run(x), scan_layers(layers, x), atol=1e-6)
    True
    """
    modules = list(modules)
    if not in_whole_function() or not modules or not is_jax(x):
        for module in modules:
            x = _plain(module, x, args, checkpoint, context_fn)
        return x
    _check_alike(modules)
    for module in modules:
        for name, part in module.named_modules():
            ACTIVE.tracer.watch.add_root(part, f"layer {name}".strip())
    parameters = [dict(module.named_parameters()) for module in modules]
    buffers = [dict(module.named_buffers()) for module in modules]
    stacks = [torch.stack([p[name] for p in parameters]) for name in parameters[0]]
    state = [torch.stack([b[name] for b in buffers]) for name in buffers[0]]
    extras = [a for a in args if isinstance(a, torch.Tensor)]
    for tensor in (x, *extras):
        ACTIVE.tracer.see(tensor)
    again = (context_fn or noop_context_fn) if checkpoint else None
    body = _Body(modules[0], list(parameters[0]), list(buffers[0]), args, again)
    result = _Scan.apply(body, len(modules), x, *extras, *stacks, *state)
    y, *written = result if isinstance(result, tuple) else (result,)
    for at, new in zip(body.written, written, strict=True):
        for each, value in zip(buffers, new.unbind(), strict=True):
            each[list(buffers[0])[at]].copy_(value)
    return y


def _plain(
    module: torch.nn.Module, x: torch.Tensor, args: tuple, again: bool, context_fn: Any
) -> torch.Tensor:
    """One layer of the loop."""
    if not again:
        return module(x, *args)
    return torch.utils.checkpoint.checkpoint(
        module, x, *args, use_reentrant=False, context_fn=context_fn or noop_context_fn
    )


# --- likeness -------------------------------------------------------------------------------------


def _check_alike(modules: list[torch.nn.Module]) -> None:
    first = dict(modules[0].named_modules())
    for index, module in enumerate(modules[1:], start=1):
        other = dict(module.named_modules())
        if other.keys() != first.keys():
            raise ValueError(f"scan_layers: layer {index} has other submodules than layer 0")
        for name, part in other.items():
            _check_parts(first[name], part, f"{index}.{name}".rstrip("."))


def _check_parts(one: torch.nn.Module, other: torch.nn.Module, label: str) -> None:
    if type(one) is not type(other):
        raise ValueError(
            f"scan_layers: layer {label} is a {type(other).__name__}, not like layer 0"
        )
    for group in ("_parameters", "_buffers"):
        forms = [_forms(getattr(m, group)) for m in (one, other)]
        if forms[0] != forms[1]:
            raise ValueError(f"scan_layers: layer {label} has {forms[1]}, layer 0 has {forms[0]}")
    for name, value in vars(one).items():
        plain = isinstance(value, PLAIN) or isinstance(value, tuple)
        if plain and not same(value, vars(other).get(name)):
            raise ValueError(
                f"scan_layers: {name} of layer {label} is {vars(other).get(name)!r}, of layer 0 "
                f"{value!r}"
            )


def _forms(tensors: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if t is None else (tuple(t.shape), t.dtype, t.requires_grad)
        for name, t in tensors.items()
    }


# --- the body -------------------------------------------------------------------------------------


class _Value(NamedTuple):
    """An input of the body: a tensor's dtype and shape, and whether gradients flow to it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    wanted: bool


class _Body:
    """One layer, traced once: inputs are ``x``, the extra tensors, parameters and buffers.

    With ``again`` the backward pass computes the layer again, all but what the first of the
    contexts keeps that it gives.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        parameters: list,
        buffers: list,
        args: tuple,
        again: ContextFn | None,
    ):
        self.module, self.parameters, self.buffers = module, parameters, buffers
        self.args, self.again = args, again
        self.written: list[int] = []
        self.saved = 0

    def trace(self, values: list[_Value], differentiate: bool) -> None:
        """Find the layer's program, and that of its backward pass."""
        self.values = values
        capture = ACTIVE.tracer
        draws = capture.body_draws()
        with x64():
            closed = jax.make_jaxpr(lambda: self._run(capture, draws, differentiate))()
        self.draws = draws.end()
        avals = self._avals(values)
        whole = jaxpr.with_inputs(closed, avals)
        outputs = 1 + len(self.written)
        first = len(values) + 1
        at = jaxpr.position(closed, first)  # the end, where there is no gradient
        again = self.again is not None
        self.cut = jaxpr.Cut(whole, at, outputs, first, int(differentiate), again, self.saved)
        self.forward = core.jaxpr_as_fun(self.cut.forward)
        self.backward = core.jaxpr_as_fun(self.cut.backward)

    def _avals(self, values: list[_Value]) -> list[Any]:
        avals = [jaxpr.Aval(v.shape, jnp.dtype(to_jax(v.dtype))) for v in values]
        words = jaxpr.Aval((4,), jnp.dtype(np.uint32))
        return [*avals, words, *(avals[:1] if self._count else [])]

    def _run(self, capture: Any, draws: Any, differentiate: bool) -> list[Any]:
        trace = jaxpr.current_trace()
        self._count = 0
        tensors = []
        for index, value in enumerate(self.values):
            aval = jaxpr.Aval(value.shape, jnp.dtype(to_jax(value.dtype)))
            tensor = storage.wrap(jaxpr.new_input(trace, index, aval), value.dtype)
            tensors.append(tensor.requires_grad_() if value.wanted and differentiate else tensor)
        words = jaxpr.Aval((4,), jnp.dtype(np.uint32))
        draws.begin(jaxpr.new_input(trace, len(self.values), words))
        with torch.set_grad_enabled(differentiate), capture.watching_inside():
            x, state, args = self._arguments(tensors)
            before = [memory_of(t) for t in tensors]
            keeping, _ = (self.again or noop_context_fn)()
            with keeping:
                y = torch.func.functional_call(self.module, state, (x, *args))
            if (y.shape, y.dtype) != (x.shape, x.dtype):
                raise ValueError(
                    f"scan_layers: a layer turns {x.dtype}{list(x.shape)} into "
                    f"{y.dtype}{list(y.shape)}; it must keep both"
                )
            offset = len(tensors) - len(self.buffers)
            self.written = [
                i for i in range(len(self.buffers))
                if memory_of(tensors[offset + i]) is not before[offset + i]
            ]  # fmt: skip
            results = [transfer.value_of(y.detach())]
            results += [transfer.value_of(tensors[offset + i].detach()) for i in self.written]
            if not differentiate:
                return results
            saved = [memory_of(one.val) for one in pytorch.kept_by_policy(keeping)]
            self.saved = len(saved)
            return [*results, *self._gradients(trace, y, tensors), *saved]

    def _arguments(self, tensors: list[torch.Tensor]) -> tuple[Any, dict, list]:
        x, *rest = tensors
        args = [rest.pop(0) if isinstance(a, torch.Tensor) else a for a in self.args]
        return x, dict(zip([*self.parameters, *self.buffers], rest, strict=True)), args

    def _gradients(self, trace: Any, y: torch.Tensor, tensors: list[torch.Tensor]) -> list[Any]:
        self._count = 1
        aval = jaxpr.Aval(tuple(y.shape), jnp.dtype(to_jax(y.dtype)))
        given = storage.wrap(jaxpr.new_input(trace, len(tensors) + 1, aval), y.dtype)
        wanted = [t for t, v in zip(tensors, self.values, strict=True) if v.wanted]
        with _no_pass_of_the_users():
            found = torch.autograd.grad(y, wanted, given, allow_unused=True, materialize_grads=True)
        return [transfer.value_of(g) for g in found]


@contextmanager
def _no_pass_of_the_users() -> Iterator[None]:
    """Run a backward pass that is none of the traced function's own."""
    tracer = ACTIVE.tracer
    before = tracer is not None and tracer.went_back
    try:
        yield
    finally:
        if tracer is not None:
            tracer.went_back = before


# --- the loop -------------------------------------------------------------------------------------


class _Scan(torch.autograd.Function):
    """The layers one after the other, and their gradients the other way round."""

    @staticmethod
    def forward(ctx: Any, body: _Body, count: int, *tensors: torch.Tensor) -> Any:
        """``x``, extra tensors, stacked parameters and buffers to the last output."""
        fixed = len(tensors) - len(body.parameters) - len(body.buffers)
        values = [
            _Value(t.dtype, tuple(t.shape[i >= fixed :]), ctx.needs_input_grad[i + 2])
            for i, t in enumerate(tensors)
        ]
        differentiate = any(v.wanted for v in values)
        values[0] = values[0]._replace(wanted=differentiate)  # of the second layer on
        body.trace(values, differentiate)
        arrays = [transfer.value_of(t) for t in tensors]
        with x64():
            words = body.draws.words(count)
            x, extras, stacks = arrays[0], arrays[1:fixed], (*arrays[fixed:], words)

            def step(x: Any, slices: tuple) -> tuple[Any, tuple]:
                y, *rest = body.forward(x, *extras, *slices)
                return y, (x, *rest)

            y, (inputs, *rest) = lax.scan(step, x, stacks)
        written = rest[: len(body.written)]
        ctx.body, ctx.fixed = body, fixed
        ctx.saved = inputs, extras, stacks, rest[len(body.written) :]
        results = [storage.wrap(y, tensors[0].dtype)]
        offset = fixed + len(body.parameters)
        for at, array in zip(body.written, written, strict=True):
            results.append(storage.wrap(array, tensors[offset + at].dtype))
        ctx.mark_non_differentiable(*results[1:])
        return tuple(results) if len(results) > 1 else results[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, *_written: Any) -> Any:
        """Gradients of ``x``, the extra tensors and the stacks."""
        body, fixed = ctx.body, ctx.fixed
        inputs, extras, stacks, residuals = ctx.saved
        wanted = [i for i, value in enumerate(body.values) if value.wanted]
        shared = [i for i in wanted if 0 < i < fixed]

        def step(carry: tuple, slices: tuple) -> tuple[tuple, list]:
            dy, sums = carry
            x, each, saved = slices
            given = [x, *extras, *each]
            results = body.backward(*(given[i] for i in body.cut.kept), *saved, dy)
            found = dict(zip(wanted, results, strict=True))
            sums = [total + found[i] for total, i in zip(sums, shared, strict=True)]
            dx = found.get(0, jnp.zeros_like(dy))
            return (dx, sums), [found[i] for i in wanted if i >= fixed]

        with x64():
            zeros = [jnp.zeros_like(extras[i - 1]) for i in shared]
            start = transfer.value_of(gradient), zeros
            (dx, sums), stacked = lax.scan(step, start, (inputs, stacks, residuals), reverse=True)
        found = dict(zip((i for i in wanted if i >= fixed), stacked, strict=True))
        found |= {0: dx} | dict(zip(shared, sums, strict=True))
        return (
            None,
            None,
            *(
                storage.wrap(found[i], v.dtype) if v.wanted else None
                for i, v in enumerate(body.values)
            ),
        )
