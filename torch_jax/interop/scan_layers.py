"""``torch_jax.scan_layers``: many identical layers, compiled once.

A loop over N layers becomes N copies of a layer in the program, and compile time grows with N. Here
one layer becomes a function of JAX, forward and backward, and XLA loops over the layers' stacked
parameters (``jax.lax.scan``, https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import lax
from torch.utils.checkpoint import noop_context_fn

from torch_jax.capture import keys
from torch_jax.core.active import ACTIVE
from torch_jax.dispatch.call_jax import jax_function
from torch_jax.interop.functional import Functional, programs_of
from torch_jax.memory.storage import is_jax

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, tuple)


def scan_layers(
    modules: Sequence[torch.nn.Module],
    x: torch.Tensor,
    *args: Any,
    checkpoint: bool = False,
    context_fn: Callable[[], tuple[Any, Any]] | None = None,
) -> torch.Tensor:
    """Return ``for m in modules: x = m(x, *args)``, with one compiled body where it is recorded.

    It is recorded under :func:`torch_jax.jit` and in lazy mode. Elsewhere it is that loop, each
    layer under ``torch.utils.checkpoint`` if asked for. Random operators of the layers draw other
    numbers than in the loop, the same again for the same seed.

    Args:
      modules: layers of one class and one configuration; only parameters and buffers differ.
      x: the first layer's input, of the shape and dtype of every layer's output.
      *args: further arguments, the same for all layers.
      checkpoint: compute each layer again in the backward pass instead of keeping its values.
      context_fn: names values that are kept, as for ``torch.utils.checkpoint``; the layers then run
        as a loop.

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
    if ACTIVE.recorder is None or context_fn is not None or not modules or not is_jax(x):
        again = functools.partial(
            torch.utils.checkpoint.checkpoint,
            use_reentrant=False,
            context_fn=context_fn or noop_context_fn,
        )
        for module in modules:
            x = again(module, x, *args) if checkpoint else module(x, *args)
        return x
    key = keys.world(), checkpoint, tuple(_common_state(modules).items())
    run = programs_of(modules[0]).get_or_make(
        key, lambda: jax_function(functools.partial(_loop, Functional(modules[0]), checkpoint))
    )
    parameters = [dict(module.named_parameters()) for module in modules]
    buffers = [dict(module.named_buffers()) for module in modules]
    stacks, state = (
        {name: torch.stack([of[name] for of in each]) for name in each[0]}
        for each in (parameters, buffers)
    )
    words = torch.ops.torch_jax.draw_key(x)
    y, written = run(x, words, len(modules), stacks, state, *args)
    with torch.no_grad():
        for name, new in written.items():
            for each, value in zip(buffers, new.unbind(), strict=True):
                each[name].copy_(value)
    return y


def _loop(
    layer: Functional, again: bool, x: Any, words: Any, count: int, stacks: dict, state: dict,
    *args: Any,
) -> tuple[Any, dict]:  # fmt: skip
    """Run the layers one after the other, as a function of JAX; returns the buffers, too."""
    base = jax.random.wrap_key_data(words, impl="threefry2x32")

    def step(x: Any, slices: tuple) -> tuple[Any, Any]:
        params, buffers, at = slices
        rng = jax.random.fold_in(base, at)
        trained = {name: params[name] for name in layer.trained}
        kept = {name: {**params, **buffers}[name] for name in layer.kept}
        y, after = layer.call(trained, kept, (x, *args), {}, rng, None)
        if (y.shape, y.dtype) != (x.shape, x.dtype):
            raise ValueError(
                f"scan_layers: a layer turns {x.dtype}{list(x.shape)} into "
                f"{y.dtype}{list(y.shape)}; it must keep both"
            )
        return y, {name: after[name] for name in buffers}

    body = jax.checkpoint(step) if again else step
    return lax.scan(body, x, (stacks, state, jax.numpy.arange(count, dtype="uint32")))


def _state_of(module: torch.nn.Module) -> dict[str, Any]:
    """Return by name what Python may read of a layer: classes, forms of tensors, attributes."""
    found: dict[str, Any] = {"submodules": tuple(dict(module.named_modules()))}
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        found[f"{prefix}__class__"] = type(part)
        for name, value in (vars(part) | part._parameters | part._buffers).items():
            if isinstance(value, torch.Tensor):
                found[prefix + name] = tuple(value.shape), value.dtype, value.requires_grad
            elif isinstance(value, _PLAIN):
                found[prefix + name] = type(value), repr(value)
    return found


def _common_state(modules: list[torch.nn.Module]) -> dict[str, Any]:
    """Return the state of each layer; raise if they differ."""
    first = _state_of(modules[0])
    for index, module in enumerate(modules[1:], start=1):
        other = _state_of(module)
        for name, wanted in first.items():
            if (now := other.get(name)) != wanted:
                raise ValueError(
                    f"scan_layers: {name} of layer {index} is {now}, of layer 0 {wanted}"
                )
    return first
