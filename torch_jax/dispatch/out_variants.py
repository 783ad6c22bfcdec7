"""``out=``: a functional result written into tensors that were given.

Whether an output may have another dtype than the result, and whether resizing it warns, is up to
each operator. PyTorch's meta function of the ``out=`` overload tells where it can; what only its
CPU kernels know is listed here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_jax.core import errors
from torch_jax.dispatch.storage_kernels import copy_, resize_
from torch_jax.eager import overlap
from torch_jax.eager.meta import infer
from torch_jax.eager.variants import is_mutated, is_out_argument, table_name
from torch_jax.memory.storage import is_jax

# Operators whose CPU kernels, not meta functions, ask for outputs of the result's very dtype.
SAME_DTYPE = frozenset(
    """
    all amax amin aminmax angle any avg_pool3d bitwise_not bucketize complex conj_physical
    cummax cummin cumprod cumsum diag diag_embed diagonal_copy heaviside index_add index_copy
    index_select isin kthvalue linalg_cross linalg_solve_triangular linalg_vector_norm
    masked_select mode msort multinomial nan_to_num neg nonzero polar round scatter_reduce
    searchsorted slice_scatter sort take tril triu unfold_copy
    """.split()
)

# Operators that resize an output with elements without the usual warning.
RESIZED_SILENTLY = frozenset(
    """
    addbmm arange bernoulli eye full linspace log_sigmoid_forward logspace multinomial narrow_copy
    normal.float_float_out ones rand randint randn randperm range zeros
    """.split()
)

# What is raised where a result cannot be cast to its output, if not RuntimeError.
CAST_ERRORS = {
    "_chunk_cat": TypeError,
    "cat": TypeError,
    "nansum": NotImplementedError,
    "normal": NotImplementedError,
    "stack": TypeError,
}

# Operators whose ``dtype=`` is another matter than the dtype of their output.
OWN_DTYPE = frozenset({"linalg_vector_norm", "nansum"})

# Operators that fill an output of any dtype.
ANY_DTYPE = frozenset({"bernoulli"})

# Operators that do not touch an output where the result is empty: batch norm in evaluation.
UNTOUCHED_BY_NOTHING = frozenset({"_native_batch_norm_legit", "native_batch_norm"})


def out_kernel(op: Any, functional: Any) -> Callable[..., Any]:
    """The kernel of an ``out=`` overload, out of the functional one."""
    names = [a.name for a in op._schema.arguments if is_out_argument(a)]
    choices = {"dtype", "device"} & {a.name for a in functional._schema.arguments}
    if _packet(op) in OWN_DTYPE:
        choices -= {"dtype"}
    # running statistics, whose new values the functional operator returns last
    written = [i for i, a in enumerate(op._schema.arguments) if is_mutated(a) and not a.kwarg_only]

    def call(*args: Any, **kwargs: Any) -> Any:
        overlap.refuse(op, args, kwargs)
        outs = {name: kwargs.pop(name) for name in names}
        first = outs[names[0]]
        for choice in choices:  # sums are taken in the output's dtype, factories run on its device
            if kwargs.get(choice) is None:
                kwargs[choice] = getattr(first, choice)
        result = functional(*args, **kwargs)
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        targets = [*outs.values(), *(args[i] for i in written)]
        pairs = list(zip(targets, results, strict=True))
        other_dtype = any(out.dtype != new.dtype for out, new in pairs)
        if other_dtype and _packet(op) not in ANY_DTYPE:
            _refuse_dtypes(op, args, {k: v for k, v in kwargs.items() if k not in choices}, outs)
        for out, new in pairs:
            if not is_jax(out):
                raise errors.same_device(op, out)
            if not new.numel() and _packet(op) in UNTOUCHED_BY_NOTHING:
                continue
            if _fit(op, out, new):  # longer by now, it may reach into an input
                overlap.refuse(op, args, kwargs | outs)
            copy_(out, new)
        return first if len(outs) == 1 else tuple(outs.values())

    return call


def _refuse_dtypes(op: Any, args: tuple, kwargs: dict, outs: dict[str, torch.Tensor]) -> None:
    """Raise what PyTorch raises for outputs of these dtypes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a resize is warned about where it happens
            infer(op, args, kwargs | outs)
    except RuntimeError as error:
        raise _cast_error(op)(str(error)) from error


def _cast_error(op: Any) -> type[Exception]:
    return CAST_ERRORS.get(_packet(op), RuntimeError)


def _packet(op: Any) -> str:
    return op._schema.name.removeprefix("aten::")


def _fit(op: Any, out: torch.Tensor, result: torch.Tensor) -> bool:
    """Make an output ready for a result; returns whether its shape has changed."""
    if out.dtype != result.dtype:
        if _packet(op) in SAME_DTYPE:
            raise errors.another_dtype(op, result.dtype, out.dtype)
        if _packet(op) not in ANY_DTYPE:
            errors.refuse_cast(result.dtype, out.dtype, _cast_error(op))
    silently = not RESIZED_SILENTLY.isdisjoint((_packet(op), table_name(op)))
    return _resize(out, tuple(result.shape), silently)


def _resize(out: torch.Tensor, shape: tuple[int, ...], silently: bool) -> bool:
    """Give an output the shape of the result, warning as PyTorch does; False if it has it."""
    if tuple(out.shape) == shape:
        return False
    if out.numel() != 0 and not silently:
        warnings.warn(
            f"An output with one or more elements was resized since it had shape "
            f"{list(out.shape)}, which does not match the required output shape {list(shape)}. "
            "This behavior is deprecated, and in a future PyTorch release outputs will not be "
            "resized unless they have zero elements.",
            stacklevel=2,
        )
    resize_(out, shape)
    return True
