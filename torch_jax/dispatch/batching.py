"""``torch.vmap`` of operators that functorch has no rule for: theirs come from ``jax.vmap``.

PyTorch runs such an operator once for each example, and warns of that; some it refuses. Every
operator of the table is a pure JAX function, of which ``jax.vmap`` makes one over batches
(:mod:`torch_jax.dispatch.batched_operator`). In-place operators are the functional ones, copied.

Tensors of other devices go PyTorch's own way, as without this package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_jax._private import functorch, pytorch
from torch_jax.core import errors
from torch_jax.dispatch import attention_choice, ladder
from torch_jax.dispatch.batched_operator import Positions
from torch_jax.dispatch.over_batches import over_batches
from torch_jax.eager import variants

Rule = Callable[..., Any]

_attention = torch.ops.aten.scaled_dot_product_attention.default
_fused_attention = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default


def install() -> list[Any]:
    """Register rules for the operators of the device that have none; returns what keeps them."""
    libraries = {name: torch.library.Library(name, "IMPL") for name in ("aten", "torch_jax")}
    for op in list(ladder.KERNELS_BY_OP):
        rule = _rule(op)
        if rule is not None:
            _register(libraries[op.namespace], op, rule)
    _register(libraries["aten"], _attention, attention_choice.attend)
    return list(libraries.values())


def _register(library: Any, op: Any, rule: Rule) -> None:
    """Serve an overload under vmap by a rule where one of its tensors is on the device."""
    before = functorch.kernel_under_vmap(op)
    positions = Positions(op)

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        tensors, _ = positions.split(args, kwargs)
        if any(t.device.type == pytorch.DEVICE_TYPE for t in tensors):
            return rule(*args, **kwargs)
        return before(keys, *args, **kwargs)

    library.impl(op, call, functorch.BATCHED, with_keyset=True)


def _rule(op: Any) -> Rule | None:
    """What an overload does under vmap, None where PyTorch's way is kept."""
    if op.namespace not in ("aten", "torch_jax") or functorch.has_rule(op):
        return None
    lowering = ladder.KERNELS_BY_OP[op].lowering
    draws = lowering.random and op is not _fused_attention  # which draws nothing under vmap
    if draws or lowering.concrete is True or lowering.writes or not Positions(op).any:
        return None
    if not op._schema.is_mutable:
        return _over_batches(op)
    functional = None if variants.is_out(op) else variants.functional_of(op)
    return None if functional is None else _in_place(op, functional)


def _over_batches(op: Any) -> Rule:
    """The rule of a functional operator."""
    positions = Positions(op)

    def rule(*args: Any, **kwargs: Any) -> Any:
        level = functorch.current_level()
        tensors, fill = positions.split(args, kwargs)
        values, dims = functorch.unwrapped(tensors, level.level())
        args, kwargs = fill(values)
        with functorch.below(level):
            if all(dim is None for dim in dims):
                return op(*args, **kwargs)
            result = over_batches(op, (tuple(dims),), args, kwargs)
        wrap = functools.partial(functorch.wrapped, level=level.level())
        return pytree.tree_map_only(torch.Tensor, wrap, result)

    return rule


def _in_place(op: Any, functional: Any) -> Rule:
    """The rule of an in-place operator."""
    written = {a.name for a in op._schema.arguments if variants.is_mutated(a)}
    single = next(iter(written)) if len(written) == 1 else None

    def checked(*args: Any, **kwargs: Any) -> Any:
        result = functional(*args, **kwargs)
        if isinstance(result, torch.Tensor) and single == "self":
            errors.refuse_cast(result.dtype, args[0].dtype)
        return result

    return ladder.derived(op, checked)
