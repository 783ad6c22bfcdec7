"""The ladder: the function that serves an overload on this device, found once.

The rungs of ``OWN`` and ``OTHERS`` are tried in order, and the first with a kernel serves the
overload. A user's override, which :mod:`torch_jax.environment.overrides` registers, comes before
all of them.

The first three rungs are our own and registered with PyTorch's dispatcher, which tries them before
PyTorch's kernels (:mod:`torch_jax.dispatch.registration`). PyTorch itself calls the kernels that it
has for every device. All other calls arrive at :func:`fallback`.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torch_jax._private import dynamo, pytorch
from torch_jax.core import waking
from torch_jax.core.active import ACTIVE
from torch_jax.dispatch import attention_choice, cpu, cross_entropy, linear, recurrent, truths
from torch_jax.dispatch.out_variants import out_kernel
from torch_jax.dispatch.storage_kernels import COPIES, KERNELS, redispatch_to_meta
from torch_jax.eager import bound, by_torch, flat_draws, variants
from torch_jax.eager.kernel import Kernel
from torch_jax.eager.signature import signature
from torch_jax.memory.shared import is_here
from torch_jax.memory.storage import tensors_in
from torch_jax.ops.registry import TABLE, Lowering

Call = Callable[..., Any]

# Composites that are replaced before autograd sees the operators PyTorch composes them of. Below
# autograd a kernel of the table serves, if there is one.
ABOVE_AUTOGRAD: dict[Any, Call] = {
    torch.ops.aten.linear.default: linear.linear,
    torch.ops.aten.scaled_dot_product_attention.default: attention_choice.attend,
    torch.ops.aten.cross_entropy_loss.default: cross_entropy.cross_entropy,
    torch.ops.aten.istft.default: truths.istft,
    torch.ops.aten.cov.default: truths.cov,
    **recurrent.NETWORKS,
}

# Of the table, and of variants derived from it: those already called or looked up.
KERNELS_BY_OP: dict[Any, Kernel] = {}
override_kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()  # of users' functions


class Served(NamedTuple):
    """The name of the rung that serves an overload, and its function of the same arguments."""

    rung: str
    call: Call


_served: dict[Any, Served] = {}
_making = threading.RLock()  # an overload has one kernel, whose cache all threads share


def door(name: str) -> Call:
    """Return the function to register for an overload: it makes the kernel at the first call."""

    def first(*args: Any, **kwargs: Any) -> Any:
        call = dynamo.unseen(served(variants.overload(name)).call)
        opened.__setstate__((call, (), {}, {}))  # from here on C calls the kernel directly
        return call(*args, **kwargs)

    opened: Any = functools.partial(dynamo.unseen(first))
    return opened


def fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an overload without a kernel of its own, as a boxed kernel; the device is awake."""
    if (found := _served.get(op)) is None:
        found = served(op)
    return found.call(*args, **kwargs)


def kernel_of(op: Any) -> Call:
    """Return the function that runs an overload on this device, of the same arguments."""
    waking.wake()
    return served(op).call


def rung(op: Any) -> str:
    """Return the rung of the ladder that serves an overload.

    One of ``table``, ``kernel``, ``variant``, ``composite``, ``view``, ``decomposition``, ``cpu``,
    or ``none`` where even the CPU has no kernel.
    """
    waking.wake()
    return served(op).rung


def served(op: Any) -> Served:
    """Return the function that serves an overload, with its rung."""
    if (found := own(op)) is None:
        found = _first(OTHERS, op)
        assert found is not None  # the last rung takes every overload
        _served[op] = found
    return found


def own(op: Any) -> Served | None:
    """Return the rung of an overload if known or our own: lower ones import decompositions."""
    if (found := _served.get(op)) is None:
        with _making:
            found = _served.get(op) or _first(OWN, op)
            if found is not None:
                _served[op] = found
    return found


def kernel_in_table(op: Any) -> Kernel | None:
    """Return the kernel that runs a lowering for an overload; None where it has another server."""
    own(op)
    return KERNELS_BY_OP.get(op)


def _first(rungs: list[tuple[str, Callable[[Any], Call | None]]], op: Any) -> Served | None:
    for name, find in rungs:
        if (call := find(op)) is not None:
            return Served(name, call)
    return None


def make_kernel(op: Any, lowering: Lowering) -> Kernel:
    """Return the kernel that runs ``lowering`` for ``op``."""
    given = lowering.static, lowering.writes, lowering.integers
    kernel = Kernel(op, lowering, signature(op, *given))
    KERNELS_BY_OP[op] = kernel
    return kernel


def enter(op: Any, call: Call) -> Call:
    """Serve an operator of our own by a function outside the table; return the function."""
    _served[op] = Served("table", call)
    return call


def forget_compiled() -> None:
    """Drop every compiled entry; each is made again when it is next called for."""
    for kernel in (*KERNELS_BY_OP.values(), *override_kernels):
        for key in list(kernel.cache):
            bound.drop(kernel, key)


def is_composite(op: Any) -> bool:
    """Return whether PyTorch decomposes an operator above autograd: no kernel may replace it."""
    has_own = _has_kernel(op, "CPU") or _has_kernel(op, "Autograd")
    return _has_kernel(op, "CompositeImplicitAutograd") and not has_own


def above_autograd(op: Any) -> Call | None:
    """Return what serves an operator before autograd sees its parts; None where it has no parts."""
    return ABOVE_AUTOGRAD.get(op) or (kernel_of(op) if is_composite(op) else None)


def _has_kernel(op: Any, key: str) -> bool:
    return pytorch.has_kernel(op.name(), key)


# --- our own rungs --------------------------------------------------------------------------------


def _table(op: Any) -> Call | None:
    lowering = TABLE.get(variants.table_name(op))
    if lowering is None or is_composite(op):
        return None
    run = _eager(op, make_kernel(op, lowering))
    return _counting(run) if op.name().startswith("aten::arange.start") else run


def _counting(run: Call) -> Call:
    """Return ``arange`` that, where XLA runs it, takes a whole start as an input."""

    def call(start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
        recorder: Any = ACTIVE.recorder
        at_once = is_here() if recorder is None else recorder.recording.at_once
        dtype, steps = options.get("dtype") or torch.int64, () if step == 1 else (step,)
        is_plain = not start or dtype.is_complex or dtype == torch.bool  # which it refuses
        if (
            at_once
            or is_plain
            or ACTIVE.tracer is not None
            or {type(start), type(end), type(step)} != {int}
        ):
            return run(start, end, *steps, **options)
        counted = run(0, end - start, *steps, **options | {"dtype": torch.int64})
        return torch.ops.torch_jax.shift(counted, start).to(dtype)

    return call


def _eager(op: Any, kernel: Kernel) -> Call:
    """Return the function for a lowering's calls: PyTorch's kernel where JAX is on the CPU."""
    kernel.on_cpu = by_torch.on_cpu(op, kernel.lowering.random)
    kernel.served = by_torch.kernel(op, kernel.signature, kernel.call, kernel.on_cpu)
    if like := kernel.lowering.drawn_like:
        unit = kernel.lowering.unit
        kernel.served = flat_draws.kernel(kernel.signature, like, unit, kernel.served)
        kernel.on_cpu = flat_draws.on_cpu(kernel.signature, kernel.served)
    return kernel.served


def _storage_kernel(op: Any) -> Call | None:
    name = variants.table_name(op)
    if is_composite(op) or name not in KERNELS:
        return None
    return _at_once_on_cpu(op, KERNELS[name]) if name in COPIES else KERNELS[name]


def _variant_of_table(op: Any) -> Call | None:
    """Return an in-place, ``out=`` or ``_foreach_`` overload of an operator in the table."""
    if is_composite(op):
        return None
    functional = variants.functional_of(op) if op._schema.is_mutable else None
    if lowering := functional and TABLE.get(variants.table_name(functional)):
        if variants.is_out(op):
            return out_kernel(op, functional)
        return _eager(op, make_kernel(op, lowering))
    if not op.name().startswith("aten::_foreach_") or variants.is_out(op):
        return None
    lowering = variants.foreach_lowering(op)
    return _eager(op, make_kernel(op, lowering)) if lowering else None


# --- what PyTorch has -----------------------------------------------------------------------------


def _view(op: Any) -> Call | None:
    """Return a view: PyTorch's composite, or its meta kernel, which makes a true alias."""
    schema = op._schema
    if schema.is_mutable or all(r.alias_info is None for r in schema.returns):
        return None
    return _composite(op) or redispatch_to_meta(op)


def _composite(op: Any) -> Call | None:
    """Return PyTorch's own kernel for every device, composed of other operators."""
    if op in ABOVE_AUTOGRAD:
        return ABOVE_AUTOGRAD[op]
    for key in pytorch.COMPOSITE_KEYS:
        if _has_kernel(op, key.name):
            return functools.partial(op._op_dk, key)
    return None


def _variant(op: Any) -> Call | None:
    """Return an in-place or ``out=`` overload of a functional operator that is itself composed."""
    functional = variants.functional_of(op) if op._schema.is_mutable else None
    if functional is None:
        return None
    calls = derived(op, functional), pytorch.decompositions().get(op)
    return _at_once_on_cpu(op, cpu.unless_running(op, *filter(None, calls)))


def _at_once_on_cpu(op: Any, run: Call) -> Call:
    """Return a call of other operators, or PyTorch's kernel where JAX is on the CPU."""
    return by_torch.kernel(op, signature(op, {}), run, by_torch.on_cpu(op))


def derived(op: Any, functional: Any) -> Call:
    """Return an in-place or ``out=`` overload, made from a call of the functional one."""
    make = out_kernel if variants.is_out(op) else _composed_in_place
    return make(op, functional)


def _composed_in_place(op: Any, functional: Any) -> Call:
    """Return an in-place overload of a functional operator that is itself composed of others."""
    sig = signature(op, {})

    def call(*args: Any, **kwargs: Any) -> Any:
        result = functional(*args, **kwargs)
        given = sig.named(args, kwargs)
        results = [result] if sig.fresh + len(sig.writes) == 1 else list(result)
        targets = tensors_in([given[name] for name in sig.writes])
        for target, value in zip(targets, tensors_in(results[sig.fresh :]), strict=True):
            target.copy_(value)
        return sig.returned(results, given)

    return call


def _decomposition(op: Any) -> Call | None:
    if (decomposition := pytorch.decompositions().get(op)) is None:
        return None
    return _at_once_on_cpu(op, cpu.unless_running(op, decomposition))


def _on_cpu(op: Any) -> Call | None:
    return cpu.on_cpu(op) if _has_kernel(op, "CPU") else None


Rungs = list[tuple[str, Callable[[Any], Call | None]]]
OWN: Rungs = [("table", _table), ("kernel", _storage_kernel), ("variant", _variant_of_table)]
OTHERS: Rungs = [
    ("view", _view),
    ("composite", _composite),
    ("variant", _variant),
    ("decomposition", _decomposition),
    ("cpu", _on_cpu),
    ("none", cpu.on_cpu),  # where the CPU has none either, its error says so
]
