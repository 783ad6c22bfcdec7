"""``torch.vmap`` of operators that functorch has no rule for.

PyTorch runs such an operator once for each example, and warns of that; some it refuses. Here

- an operator of the table gets its rule from ``jax.vmap``, since it is a pure JAX function
  (:mod:`torch_jax.dispatch.batched_operator`);
- an in-place operator is the functional one, copied;
- a composite of other operators is composed under ``vmap``, too.

Tensors of other devices go PyTorch's own way, as without this package.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_jax._private import functorch, pytorch
from torch_jax.core import errors, trees
from torch_jax.dispatch import attention_choice, ladder, registration
from torch_jax.dispatch.batched_operator import TENSOR, example_of, run
from torch_jax.dispatch.storage_kernels import KERNELS
from torch_jax.eager import variants
from torch_jax.memory.storage import tensors_in

Rule = Callable[..., Any]  # of the arguments that an operator has at one level of vmap

_attention = torch.ops.aten.scaled_dot_product_attention.default


# functorch makes groups of examples, which XLA computes a hundred times more slowly on a CPU.
_BETTER = {torch.ops.aten.convolution_backward.default}

# JAX has no gradients of these; PyTorch has, for its loop.
_WITHOUT_GRADIENTS = {torch.ops.aten.ormqr.default, torch.ops.aten.index_reduce.default}

_libraries: list[Any] = []  # a registration lives as long as these
_registering = threading.Lock()


class _LoopInstead(Exception):
    """A composite looks at values: PyTorch's loop must serve it, or raise."""


def installed() -> None:
    """Register rules, once, for the operators of the device that have none."""
    if not _libraries:
        with _registering:
            if not _libraries:
                _libraries.extend(_install())


def _install() -> list[Any]:
    libraries = {name: torch.library.Library(name, "IMPL") for name in ("aten", "torch_jax")}
    for op in _overloads():
        if op.namespace in libraries and (op in _BETTER or not functorch.has_rule(op.name())):
            if (rule := _rule(op)) is not None:
                _register(libraries[op.namespace], op, rule)
    for op in _composites():
        _register(libraries["aten"], op, functools.partial(_composed, op))
    _register(libraries["aten"], _attention, attention_choice.attend)
    return list(libraries.values())


def _overloads() -> Iterator[Any]:
    """Yield overloads that may have a kernel of the table."""
    yield from filter(None, map(variants.overload, registration.served_names()))
    yield from (op for op in list(ladder.KERNELS_BY_OP) if op.namespace != "aten")


def _register(library: Any, op: Any, rule: Rule) -> None:
    """Serve an overload under vmap by a rule where one of its tensors is on the device."""
    before = functorch.kernel_under_vmap(op)  # by which tensors of other devices go

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if any(t.device.type == pytorch.DEVICE_TYPE for t in tensors_in((args, kwargs))):
            with contextlib.suppress(_LoopInstead):
                return rule(*args, **kwargs)
        return before(keys, *args, **kwargs)

    with warnings.catch_warnings():  # PyTorch warns where a rule of its own is replaced
        warnings.simplefilter("ignore")
        library.impl(op, call, functorch.BATCHED, with_keyset=True, allow_override=True)


def _rule(op: Any) -> Rule | None:
    """Return the rule of an operator that has a kernel, None where PyTorch's way is kept."""
    if (kernel := ladder.kernel_in_table(op)) is None:
        return None
    lowering = kernel.lowering
    draws = lowering.random and not lowering.drawn_if  # by its choice attention has none here
    if draws or lowering.concrete is True or lowering.writes:
        return None
    return _in_place(op) if op._schema.is_mutable else functools.partial(_over_batches, op)


def _over_batches(op: Any, *args: Any, **kwargs: Any) -> Any:
    level = functorch.current_level()
    leaves, form = trees.flatten((args, kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors, dims = functorch.unwrapped([leaves[i] for i in at], level.level())
    with functorch.below(level):
        if all(dim is None for dim in dims):
            for i, tensor in zip(at, tensors, strict=True):
                leaves[i] = tensor
            args, kwargs = trees.unflatten(form, leaves)
            return op(*args, **kwargs)
        tracks = pytorch.in_functional_transform() or any(t.requires_grad for t in tensors)
        if tracks and op in _WITHOUT_GRADIENTS:
            raise _LoopInstead
        example = example_of(op, form, leaves)
        found = run(example.program, tensors, dims)
    wrapped = iter([functorch.wrapped(tensor, level.level()) for tensor in found])
    results = [next(wrapped) if leaf is TENSOR else leaf for leaf in example.results]
    return trees.unflatten(example.form, results)


def _in_place(op: Any) -> Rule:

    @functools.cache
    def derived() -> Rule:
        if (functional := variants.functional_of(op)) is None:
            raise _LoopInstead
        return ladder.derived(op, functools.partial(_functional, functional))

    return lambda *args, **kwargs: derived()(*args, **kwargs)


def _functional(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the value to write; raise where the first argument cannot hold it."""
    result = op(*args, **kwargs)
    if isinstance(result, torch.Tensor) and isinstance(args[0], torch.Tensor):
        errors.refuse_cast(result.dtype, args[0].dtype)
    return result


def _composites() -> Iterator[Any]:
    """Yield overloads composed by PyTorch, but not under vmap, or by a kernel of ours."""
    kinds = [key.name for key in pytorch.COMPOSITE_KEYS]
    known = pytorch.all_op_names()
    composed = (n for n in known if any(pytorch.has_kernel(n, kind) for kind in kinds))
    ours = (f"aten::{name}" for name in KERNELS if "::" not in name)
    for name in (*composed, *ours):
        if not name.startswith("aten::") or functorch.has_rule(name):
            continue
        op = variants.overload(name.removeprefix("aten::"))
        schema = None if op is None else op._schema
        if schema is None or schema.is_mutable or any(r.alias_info for r in schema.returns):
            continue
        if ladder.kernel_in_table(op) is None:
            yield op


def _composed(op: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return ladder.kernel_of(op)(*args, **kwargs)
    except RuntimeError as error:  # PyTorch's composites of an ``out=`` overload among them
        if (decomposition := pytorch.decompositions().get(op)) is None:
            raise _LoopInstead from error
        return decomposition(*args, **kwargs)
