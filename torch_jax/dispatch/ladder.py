"""From the table to PyTorch's dispatcher: kernels for every overload, and the lookup ladder.

For each operator the ladder's rungs, in order: a user's override
(:mod:`torch_jax.environment.overrides`), the table, a variant derived from the table, PyTorch's own
composite, a decomposition, the CPU,
``OperatorNotFound``. What the table serves is registered with the dispatcher when the device is
first used. All else arrives at :func:`fallback`, which finds the rung once per overload and
remembers it.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from torch_jax import config, ops
from torch_jax._private import pytorch
from torch_jax.core import errors, forks, log, waking
from torch_jax.dispatch import attention_choice, autocast, call_jax
from torch_jax.dispatch.out_variants import out_kernel
from torch_jax.dispatch.storage_kernels import KERNELS, redispatch_to_meta
from torch_jax.eager import variants
from torch_jax.eager.kernel import Kernel
from torch_jax.eager.signature import signature
from torch_jax.memory.storage import is_jax
from torch_jax.ops.registry import TABLE, Lowering

CPU_FALLBACKS: Counter[str] = Counter()  # overloads that ran on the CPU, and how often

# of what PyTorch composes, what is chosen before autograd sees its parts
ABOVE_AUTOGRAD = {torch.ops.aten.scaled_dot_product_attention.default: attention_choice.attend}

KERNELS_BY_OP: dict[Any, Kernel] = {}  # what the table serves

others: weakref.WeakSet[Kernel] = weakref.WeakSet()  # kernels that serve overrides
_libraries: list[torch.library.Library] = []  # a registration lives as long as these
_resolved: dict[Any, Callable[..., Any]] = {}
_library: torch.library.Library | None = None
_private: torch.library.Library | None = None
_lock = threading.RLock()
_running = threading.local()


def install() -> None:
    """Register kernels for the whole table; called once, at the first use of the device."""
    global _library, _private
    with _lock:
        if _library is not None:
            return
        _private = torch.library.Library("torch_jax", "FRAGMENT")
        _private.define("write_(Tensor(a!) self, Tensor source) -> Tensor(a!)")
        _private.define(call_jax.SCHEMA)
        ops.load()

        library = torch.library.Library("aten", "IMPL")
        for name, kernel in KERNELS.items():
            if name not in waking.DOORS:
                _register(library, name, kernel)
        for name in TABLE:
            _register_table(library, name)
        for packet in {name.partition(".")[0] for name in TABLE}:
            _register_variants(library, packet)
        for packet in _foreach_packets():
            _register_foreach(library, packet)
        write = TABLE["torch_jax::write_"]
        op = torch.ops.torch_jax.write_.default
        _private.impl("write_", make_kernel(op, write).call, "PrivateUse1")
        op = torch.ops.torch_jax.call_jax.default
        torch.library.register_fake("torch_jax::call_jax", call_jax.fake_call, lib=_private)
        _private.impl("call_jax", make_kernel(op, call_jax.LOWERING).call, "PrivateUse1")
        for key in ("Conjugate", "Negative"):  # it writes the memory as it is; copy_ has seen to it
            _private.impl("write_", torch.library.fallthrough_kernel, key)
        _libraries.extend((attention_choice.install(), autocast.install()))
        config.listeners.extend((forget_compiled, log.install))
        log.install()
        forks.listeners.append(forget_compiled)
        _library = library


def forget_compiled() -> None:
    """Drop every compiled entry; each is made again when it is next called for."""
    for kernel in (*KERNELS_BY_OP.values(), *others):
        kernel.cache.clear()
        kernel.hot.clear()


def _register(library: Any, name: str, kernel: Callable[..., Any]) -> None:
    """Register a kernel for an overload, if this torch has the overload and ours must run."""
    op = variants.overload(name)
    if op is None or is_composite(op) or op in _resolved:
        return
    _resolved[op] = kernel
    library.impl(op, pytorch.unseen(kernel), "PrivateUse1")


def is_composite(op: Any) -> bool:
    """Whether PyTorch decomposes the operator above autograd: a kernel would take its gradient.

    Some with a decomposition have kernels too (``silu_backward``), and gradients of their own.
    """
    return _has_kernel(op, "CompositeImplicitAutograd") and not _has_kernel(op, "CPU")


def _has_kernel(op: Any, key: str) -> bool:
    """Whether PyTorch has a kernel of the overload for a dispatch key."""
    return pytorch.has_kernel(op.name(), key)


def _register_table(library: Any, name: str) -> None:
    if "::" in name:  # of another library, which may be imported later: by way of the fallback
        return
    op = variants.overload(name)
    if op is not None:
        _register(library, name, make_kernel(op, TABLE[name]).call)


def _register_variants(library: Any, packet: str) -> None:
    for base in dict.fromkeys((packet, f"{packet.removesuffix('_functional')}_")):
        for op in variants.siblings(base):
            name = variants.table_name(op)
            if name in TABLE or name in KERNELS or not op._schema.is_mutable:
                continue
            functional = variants.functional_of(op)
            lowering = functional and TABLE.get(variants.table_name(functional))
            if not lowering:
                continue
            if variants.is_out(op):
                _register(library, name, out_kernel(op, functional))
            else:
                _register(library, name, make_kernel(op, lowering, functional).call)


def _foreach_packets() -> list[str]:
    names = {name.partition(".")[0] for name in pytorch.all_op_names()}
    return sorted(
        name.removeprefix("aten::") for name in names if name.startswith("aten::_foreach_")
    )


def _register_foreach(library: Any, packet: str) -> None:
    for op in variants.siblings(packet):
        if variants.is_out(op) or variants.table_name(op) in TABLE:
            continue
        lowering = variants.foreach_lowering(op)
        if lowering is not None:
            _register(library, variants.table_name(op), make_kernel(op, lowering).call)


def make_kernel(op: Any, lowering: Lowering, functional: Any = None) -> Kernel:
    """The kernel that runs ``lowering`` for the overload ``op``, a variant of ``functional``."""
    kernel = Kernel(op, lowering, signature(op, lowering.static, lowering.writes), functional)
    KERNELS_BY_OP[op] = kernel
    return kernel


def fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The boxed kernel of every overload that has none: climbs the ladder."""
    install()
    found = _resolved.get(op)
    if found is None:
        found = _resolve(op)
        _resolved[op] = found
    return found(*args, **kwargs)


def kernel_of(op: Any) -> Callable[..., Any]:
    """What an overload does on this device, as a function of the same arguments."""
    install()
    if op in ABOVE_AUTOGRAD:
        return ABOVE_AUTOGRAD[op]
    if op in _resolved and not is_composite(op):
        return _resolved[op]
    for key in pytorch.COMPOSITE_KEYS:
        if _has_kernel(op, key.name):
            return functools.partial(op._op_dk, key)
    return functools.partial(fallback, op)


def rung(op: Any) -> str:
    """Which rung of the ladder serves an overload.

    One of ``table``, ``kernel``, ``variant``, ``composite``, ``view``,
    ``decomposition``, ``cpu``, or ``none`` where even the CPU has no kernel.
    """
    install()
    name = variants.table_name(op)
    if name in TABLE:
        return "table"
    if name in KERNELS:
        return "kernel"
    if op in KERNELS_BY_OP or "out_kernel" in getattr(_resolved.get(op), "__qualname__", ""):
        return "variant"
    if _is_view(op):
        return "view"
    if is_composite(op) or _has_kernel(op, "CompositeExplicitAutograd"):
        return "composite"
    if op._schema.is_mutable and variants.functional_of(op) is not None:
        return "variant"
    if op in pytorch.decompositions():
        return "decomposition"
    return "cpu" if _has_kernel(op, "CPU") else "none"


def _resolve(op: Any) -> Callable[..., Any]:
    name = variants.table_name(op)
    lowering = TABLE.get(name)
    if lowering is not None:
        return make_kernel(op, lowering).call
    if _is_view(op):
        return redispatch_to_meta(op)
    if op._schema.is_mutable:
        functional = variants.functional_of(op)
        if functional is not None:
            return _unless_running(op, derived(op, functional))
    decomposition = pytorch.decompositions().get(op)
    if decomposition is not None:
        return _unless_running(op, decomposition)
    return _on_cpu(op)


def _is_view(op: Any) -> bool:
    schema = op._schema
    return not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)


def derived(op: Any, functional: Any) -> Callable[..., Any]:
    """An in-place or ``out=`` overload, out of a call of the functional one."""
    make = out_kernel if variants.is_out(op) else _composed_in_place
    return make(op, functional)


def _composed_in_place(op: Any, functional: Any) -> Callable[..., Any]:
    """In-place out of a functional operator that is itself composed of others."""
    written = [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    names = [a.name for a in op._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        result = functional(*args, **kwargs)
        given = dict(zip(names, args, strict=False)) | kwargs
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        for name, value in zip(written, results, strict=True):
            given[name].copy_(value)
        return given[written[0]] if len(written) == 1 else tuple(given[n] for n in written)

    return call


def _unless_running(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, or the CPU where it has led back to the operator it was to replace."""
    to_cpu = _on_cpu(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        active = _running.__dict__.setdefault("ops", set())
        if op in active:
            return to_cpu(*args, **kwargs)
        active.add(op)
        try:
            result = function(*args, **kwargs)
        finally:
            active.discard(op)
        return to_cpu(*args, **kwargs) if result is NotImplemented else result

    return call


def _on_cpu(op: Any) -> Callable[..., Any]:
    """Run on copies on the CPU and write back what the operator changed; warned and counted."""
    written = [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    names = [a.name for a in op._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        _account_for_cpu(op, args, kwargs)
        host_args = [_to_host(a) for a in args]
        host_kwargs = {k: _to_host(v) for k, v in kwargs.items()}
        if "device" in host_kwargs:
            host_kwargs["device"] = torch.device("cpu")
        try:
            result = op(*host_args, **host_kwargs)
        except NotImplementedError as error:
            raise errors.not_found(op, args, kwargs) from error
        given = dict(zip(names, args, strict=False)) | kwargs
        host = dict(zip(names, host_args, strict=False)) | host_kwargs
        back = {}
        for name in written:
            _write_back(given[name], host[name])
            back[id(host[name])] = given[name]
        return _to_device(result, back)

    return call


def _account_for_cpu(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    policy = config.get("cpu_fallback")
    if policy == "error":
        raise errors.not_found(op, args, kwargs)
    CPU_FALLBACKS[str(op)] += 1
    if policy == "warn" and CPU_FALLBACKS[str(op)] == 1:
        warnings.warn(
            f"{errors.describe_call(op, args, kwargs)} has no lowering to JAX and runs on the CPU, "
            "with a copy each way. TORCH_JAX_CPU_FALLBACK=error forbids this.",
            stacklevel=3,
        )


def _to_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu() if is_jax(value) else value
    if isinstance(value, list | tuple):
        return type(value)(_to_host(v) for v in value)
    if isinstance(value, torch.device) and value.type == pytorch.DEVICE_TYPE:
        return torch.device("cpu")
    return value


def _to_device(value: Any, back: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return back.get(id(value)) if id(value) in back else value.to(pytorch.DEVICE_TYPE)
    if isinstance(value, list | tuple):
        return type(value)(_to_device(v, back) for v in value)
    return value


def _write_back(target: Any, source: Any) -> None:
    if isinstance(target, list | tuple):
        for one, new in zip(target, source, strict=True):
            _write_back(one, new)
    elif isinstance(target, torch.Tensor) and is_jax(target):
        if target.shape != source.shape:
            target.resize_(source.shape)
        target.copy_(source)
