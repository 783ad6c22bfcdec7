"""``out=``: a functional result written into tensors that were given.

Each operator has its own rule for outputs of another dtype: the CPU's kernel of the ``out=``
overload is tried. Only these kernels know whether a resize warns, so a list is here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_jax.core import errors
from torch_jax.dispatch.storage_kernels import copy_, resize_
from torch_jax.eager import refusals
from torch_jax.eager.meta import infer
from torch_jax.eager.variants import is_mutated, is_out_argument, table_name
from torch_jax.memory.storage import is_jax, tensors_in

# Operators that resize an output with elements without the usual warning.
RESIZED_SILENTLY = frozenset(
    """
    addbmm arange bernoulli eye full linspace log_sigmoid_forward logspace multinomial narrow_copy
    normal.float_float_out ones rand randint randn randperm range zeros
    """.split()
)

# Operators that keep the shape of an output with as many elements as they give.
FILLS_ANY_SHAPE = frozenset({"arange", "linspace", "logspace", "range"})

# Operators whose ``dtype=`` is not the dtype of their output.
OWN_DTYPE = frozenset({"linalg_vector_norm", "nansum"})

# Operators that do not touch an output where the result is empty: batch norm in evaluation.
UNTOUCHED_BY_NOTHING = frozenset({"_native_batch_norm_legit", "native_batch_norm"})


def out_kernel(op: Any, functional: Any) -> Callable[..., Any]:
    """Return the kernel of an ``out=`` overload, made from the functional one."""
    names = [a.name for a in op._schema.arguments if is_out_argument(a)]
    choices = {"dtype", "device"} & {a.name for a in functional._schema.arguments}
    packet = op._schema.name.removeprefix("aten::")
    if packet in OWN_DTYPE:
        choices -= {"dtype"}
    # running statistics, whose new values the functional operator returns last
    written = [i for i, a in enumerate(op._schema.arguments) if is_mutated(a) and not a.kwarg_only]

    def call(*args: Any, **kwargs: Any) -> Any:
        refusals.check_memory(op, args, kwargs)
        outs = {name: kwargs.pop(name) for name in names}
        inputs = list(tensors_in((args, kwargs)))
        if not any(map(is_jax, inputs)):  # the CPU would compute, without a word
            for tensor in filter(torch.Tensor.dim, inputs):
                raise errors.same_device(op, tensor)
        first, given = outs[names[0]], dict(kwargs)
        for choice in choices:  # sums are taken in the output's dtype, factories run on its device
            if kwargs.get(choice) is None:
                kwargs[choice] = getattr(first, choice)
        result = functional(*args, **kwargs)
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        targets = [*outs.values(), *(args[i] for i in written)]
        pairs = list(zip(targets, results, strict=True))
        if any(out.dtype != new.dtype for out, new in pairs):
            dtypes = {name: new.dtype for name, new in zip(names, results, strict=False)}
            named = given | outs
            if not refusals.check_outputs(op, args, named, dtypes):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a resize is warned about where it happens
                    infer(op, args, named)
                for name, dtype in dtypes.items():
                    errors.refuse_cast(dtype, named[name].dtype)
        for out, new in pairs:
            if not is_jax(out):
                raise errors.same_device(op, out)
            if not new.numel() and packet in UNTOUCHED_BY_NOTHING:
                continue
            if packet in FILLS_ANY_SHAPE and out.numel() == new.numel():
                new = new.view(out.shape)
            if _fit(op, out, new):  # after a resize, it may reach into an input
                refusals.check_memory(op, args, kwargs | outs)
            copy_(out, new)
        return first if len(outs) == 1 else tuple(outs.values())

    return call


def _fit(op: Any, out: torch.Tensor, result: torch.Tensor) -> bool:
    """Make an output ready for a result, warning as PyTorch does; return whether it is resized."""
    if out.shape == result.shape:
        return False
    names = table_name(op), table_name(op).partition(".")[0]
    if out.numel() != 0 and RESIZED_SILENTLY.isdisjoint(names):
        warnings.warn(
            f"An output with one or more elements was resized since it had shape "
            f"{list(out.shape)}, which does not match the required output shape "
            f"{list(result.shape)}. This behavior is deprecated, and in a future PyTorch release "
            "outputs will not be resized unless they have zero elements.",
            stacklevel=2,
        )
    resize_(out, result.shape)
    if out.stride() != result.stride():
        out.as_strided_(result.shape, result.stride())
    return True
