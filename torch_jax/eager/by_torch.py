"""Eager operators where JAX computes on the CPU: PyTorch's own kernels, on the memory of tensors.

Nothing is compiled, and results, strides and errors are those of the CPU. A kernel replaces a
lowering of the table, so an operator that an accelerator lacks is missing here too; the table still
serves calls that are recorded, traced, random or on a mesh, and dtypes without a kernel of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_jax._private import jax_core, pytorch
from torch_jax.core import errors
from torch_jax.core.active import ACTIVE, unrecorded
from torch_jax.eager import bound, refusals
from torch_jax.eager.signature import TENSORS, Signature
from torch_jax.eager.stand_ins import STAND_INS
from torch_jax.memory.shared import Elsewhere, holds_new, is_here, seen, taken, written
from torch_jax.memory.storage import PLAIN_TENSORS

Call = Callable[..., Any]

SERVED: set[Any] = set()  # the overloads that PyTorch's kernels serve

_autocast = torch.is_autocast_enabled
_free_seen = jax_core.collector()
_VALUES = frozenset((int, float, bool, complex, str, type(None), torch.dtype, torch.memory_format))


def kernel(op: Any, sig: Signature, by_xla: Call, run: Call | None) -> Call:
    """Return the kernel of an overload: PyTorch's, by :func:`on_cpu`, or ``by_xla`` without one."""
    if run is None:
        return by_xla
    SERVED.add(op)
    return _writing(op, sig, by_xla, run) if sig.writes else _functional(op, by_xla, run)


def on_cpu(op: Any, is_random: Any = False) -> Call | None:
    """Return PyTorch's kernel for CPU tensors; None without one, and for draws, which differ."""
    if is_random or op.name() in STAND_INS:
        return STAND_INS.get(op.name())
    names = ("CPU", *(key.name for key in pytorch.COMPOSITE_KEYS))
    known = op.namespace == "aten" and any(pytorch.has_kernel(op.name(), key) for key in names)
    return op._op if known else None


def _functional(op: Any, by_xla: Call, run: Call) -> Call:
    uncast = pytorch.without_autocast_of_cpu(run)
    tally = bound.UNCOMPILED.setdefault(op.name(), [0])

    def call(*args: Any, **kwargs: Any) -> Any:
        if ACTIVE.recorder is not None or not holds_new():
            return by_xla_or_at_once(op, call, by_xla, args, kwargs)
        try:
            given, named = _all_seen(args, kwargs)
        except Elsewhere:
            given = None
        if given is None:  # called here, an error of XLA's has no other error as its context
            return by_xla(*args, **kwargs)
        try:
            result = (run if not _autocast("cpu") else uncast)(*given, **named)
        except Exception as error:
            return _failed(error, op, by_xla, args, kwargs)
        finally:
            del given, named
            _free_seen()
        tally[0] += 1
        return taken(result) if type(result) is torch.Tensor else _taken(result)

    return call


def _writing(op: Any, sig: Signature, by_xla: Call, run: Call) -> Call:
    lists = counted_lists(op, sig)
    uncast = pytorch.without_autocast_of_cpu(run)
    tally = bound.UNCOMPILED.setdefault(op.name(), [0])

    def compute(given: tuple[list[Any], dict[str, Any]]) -> Any:
        args, kwargs = given
        return (run if not _autocast("cpu") else uncast)(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_here():
            return by_xla_or_at_once(op, call, by_xla, args, kwargs)
        given = dict(zip(sig.names, args, strict=False)) | kwargs
        targets = [given.get(name) for name in sig.writes]
        try:
            result = written(targets, lambda: _all_seen(args, kwargs), compute)
        except Elsewhere:
            result = Elsewhere
        except Exception as error:
            return _failed(error, op, by_xla, args, kwargs)
        finally:
            _free_seen()
        if result is Elsewhere:
            return by_xla(*args, **kwargs)
        tally[0] += 1
        for at in lists:
            count_writes(args[at])
        results = [result] if len(sig.returns) == 1 else list(result or ())
        pairs = zip(sig.returns, results, strict=False)
        found = [_taken(new) if name is None else given[name] for name, new in pairs]
        return found[0] if len(found) == 1 else tuple(found) if found else None

    return call


def by_xla_or_at_once(op: Any, call: Call, by_xla: Call, args: tuple, kwargs: dict) -> Any:
    """Run ``by_xla``, which may record; or ``call``, where a recording runs operators at once."""
    recorder: Any = ACTIVE.recorder if ACTIVE.tracer is None else None
    may_pass = recorder is not None and (recorder.recording.at_once is not False or recorder.least)
    if not (may_pass and recorder.passes(op, args, kwargs)):
        return by_xla(*args, **kwargs)
    with unrecorded():
        result = call(*args, **kwargs)
    is_number = isinstance(result, int | float | complex)
    if is_number or (isinstance(result, torch.Tensor) and result.device.type == "cpu"):
        recorder.look()
    return result


def counted_lists(op: Any, sig: Signature) -> list[int]:
    """Return the places of written lists; PyTorch itself counts the writes to single tensors."""
    lists = [at for at, name in enumerate(sig.names) if sig.by_name[name] == TENSORS]
    counts = op._schema.name.startswith(("aten::_foreach_", "torch_jax::"))  # unlike ``_fused_``
    return [at for at in lists if counts and sig.names[at] in sig.writes]


def count_writes(tensors: list[torch.Tensor]) -> None:
    """Raise the versions of tensors, by which autograd finds that a saved one was written."""
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


def _all_seen(args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    given = [seen(a) if type(a) in PLAIN_TENSORS else _seen(a) for a in args]
    if not kwargs:
        return given, kwargs
    return given, {n: _seen(value) for n, value in kwargs.items() if n != "pin_memory"}


def _seen(value: Any) -> Any:
    """Return an argument as the CPU's kernel takes it."""
    kind = type(value)
    if kind in _VALUES:
        return value
    if isinstance(value, torch.Tensor):
        return seen(value)
    if kind is list or kind is tuple:
        return kind([seen(a) if type(a) in PLAIN_TENSORS else _seen(a) for a in value])
    if kind is torch.device:
        errors.check_ordinal(value)
        if value.type != pytorch.DEVICE_TYPE:
            raise Elsewhere
        return torch.device("cpu")
    if value is torch.strided:
        return value
    raise Elsewhere


def _taken(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return taken(result)
    if isinstance(result, list | tuple):
        return (tuple if isinstance(result, tuple) else list)(map(_taken, result))
    return result


def is_elsewhere(error: Exception) -> bool:
    """Return whether an error says that PyTorch has no such kernel for the CPU."""
    unknown = isinstance(error, Elsewhere | NotImplementedError)
    return unknown or "not implemented for" in str(error)


def _failed(error: Exception, op: Any, by_xla: Call, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call by XLA where the CPU has no kernel for a dtype; else raise the CPU's error."""
    if is_elsewhere(error):
        return by_xla(*args, **kwargs)
    if "can't allocate memory" in str(error):
        raise errors.from_jax(error, op, args, kwargs) from error
    raise refusals.described(error, op, args, kwargs) from error
