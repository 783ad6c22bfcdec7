"""Functions in place of operators and of PyTorch's callables, for a region or permanently.

An operator that is overridden for the first time gets a *switch*: a kernel that asks, at each call,
which override is in force for its caller, and without one calls the former kernel. The switch of an
operator that PyTorch composes above autograd is also above autograd. A callable of PyTorch's is
replaced by name (:mod:`torch_jax.environment.callables`) while an override of it exists.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

import torch

from torch_jax._private import dynamo, pytorch
from torch_jax.core import dynamo_constants, log, waking
from torch_jax.core.active import ACTIVE
from torch_jax.core.scopes import Scopes
from torch_jax.dispatch import call_jax, ladder
from torch_jax.eager import variants
from torch_jax.eager.kernel import Kernel
from torch_jax.eager.signature import signature
from torch_jax.environment import callables
from torch_jax.ops import registry

_scopes = Scopes("torch_jax overrides")
_running: ContextVar[tuple[Any, ...]] = ContextVar("torch_jax overrides that run", default=())
_permanent: dict[Any, list[Override]] = {}
_changes = 0  # how often the permanent overrides have changed
_lock = threading.RLock()


class Override:
    """A function in place of an operator or callable (:meth:`torch_jax.Environment.override`)."""

    def __init__(self, target: Any, function: Callable[..., Any], takes: str = "", **options: Any):
        """Resolve the target; for arguments see :meth:`torch_jax.Environment.override`."""
        if not callable(function):
            raise TypeError(f"an override is a function, not {function!r}")
        waking.wake()
        self.targets, self.function = resolve(target), function
        is_operator = _is_operator(self.targets[0])
        self.takes = takes or ("jax" if is_operator else "torch")
        if self.takes not in ("jax", "torch"):
            raise ValueError(f"takes must be 'jax' or 'torch', not {takes!r}")
        if options and not (is_operator and self.takes == "jax"):
            raise TypeError(f"only JAX functions for operators have options: {sorted(options)}")
        self.calls = {one: _call(one, function, self.takes, options) for one in self.targets}
        self.was_used = False

    def __repr__(self) -> str:
        shown = ", ".join(name_of(target) for target in self.targets)
        name = getattr(self.function, "__name__", repr(self.function))
        return f"<override of {shown} by {name}, a {self.takes} function>"

    def __del__(self) -> None:
        if not getattr(self, "was_used", True):
            warnings.warn(
                f"{self!r} was never entered: write `with env.override(target, function):`, or "
                "`@env.override(target)` to keep it",
                stacklevel=2,
            )

    def __enter__(self) -> Override:
        self.was_used = True
        for target in self.targets:
            _use(target)
        _scopes.enter(self)
        return self

    def __exit__(self, *_exception: object) -> None:
        _scopes.leave(self)
        for target in self.targets:
            _release(target)

    def run(self, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call the function, inside of which the target is not overridden by this override."""
        token = _running.set((*_running.get(), self))
        try:
            return self.calls[target](*args, **kwargs)
        finally:
            _running.reset(token)


def install(target: Any, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Put an override in force permanently, on all threads; return its function."""
    global _changes
    override = Override(target, function, **options)
    override.was_used = True
    log.LOGGER.debug("%r comes into force", override)
    for one in override.targets:
        _use(one)
        with _lock:
            _permanent[one] = [*_permanent.get(one, ()), override]
            _changes += 1
    return function


def remove(target: Any) -> None:
    """Take the last permanent override of ``target`` away."""
    global _changes
    targets = resolve(target)
    with _lock:
        if not (found := _permanent.get(targets[0])):
            raise KeyError(f"{name_of(targets[0])} has no permanent override")
        override = found[-1]
        log.LOGGER.debug("%r goes", override)
        for one in override.targets:
            _permanent[one] = [o for o in _permanent[one] if o is not override]
            _release(one)
        _changes += 1


def chosen(target: Any) -> Override | None:
    """Return the override that serves ``target`` for the caller, None without any."""
    permanent = _permanent.get(target, ())
    scoped = _scopes.values()
    if not (permanent or scoped):
        return None
    running = _running.get()
    for override in (*reversed(scoped), *reversed(permanent)):
        if target in override.calls and override not in running:
            return override
    return None


def in_force() -> tuple[Override, ...]:
    """Return all overrides that may serve the caller, the first to be asked first."""
    permanent = dict.fromkeys(o for some in _permanent.values() for o in reversed(some))
    return (*reversed(_scopes.values()), *permanent)


def state() -> tuple:
    """Return the state of overrides on which a trace depends."""
    return _changes, _scopes.values(), _running.get()


# --- targets --------------------------------------------------------------------------------------


def resolve(target: Any) -> tuple[Any, ...]:
    """Return the overloads, or the one callable, that an override is about."""
    if _is_operator(target):
        return (target,)
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = target._qualified_op_name
    if isinstance(target, str):
        if not (found := variants.named(target)):
            raise ValueError(f"torch {torch.__version__} has no operator {target!r}")
        functional = tuple(op for op in found if not op._schema.is_mutable)
        return functional or tuple(found)  # derived ones follow
    if not callable(target) or isinstance(target, type):
        raise TypeError(f"an override is of an operator or a function, not of {target!r}")
    return (_originals.get(target, target),)


def _is_operator(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload)


def name_of(target: Any) -> str:
    """Return an operator's or a callable's name, for messages."""
    return str(target) if _is_operator(target) else target.__name__


# --- operators ------------------------------------------------------------------------------------

_switched: dict[Any, torch.library.Library] = {}


def _call(target: Any, function: Callable[..., Any], takes: str, options: dict) -> Any:
    """Return the function that serves ``target`` while the override is in force."""
    if takes == "torch":
        return _checked(target, function)
    # a composite has no backward formula: autograd must see through the function
    has_parts = not _is_operator(target) or ladder.above_autograd(target) is not None
    if has_parts and not options:
        return _checked(target, call_jax.jax_function(function))
    lowering = registry.lowering(variants.table_name(target), function, **options)
    kernel = Kernel(target, lowering, signature(target, lowering.static, lowering.writes))
    ladder.override_kernels.add(kernel)
    return kernel.call


def _checked(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, checked: PyTorch would pass on None in place of a tensor."""
    if not _is_operator(op) or [str(one.type) for one in op._schema.returns] != ["Tensor"]:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        if (result := function(*args, **kwargs)) is None:
            raise TypeError(f"the function that serves {op} returned nothing in place of a tensor")
        return result

    return call


def _switch_operator(op: Any) -> None:
    """Give an operator, and overloads derived from it, kernels that ask for overrides."""
    if op in _switched:
        return
    above = ladder.above_autograd(op)
    _switched[op] = _register(op, _switch(op, ladder.kernel_of(op)), above and _switch(op, above))
    for variant in _variants_of(op):
        if variant not in _switched:
            derived = _derived_switch(variant, op)
            _switched[variant] = _register(
                variant, derived, ladder.above_autograd(variant) and derived
            )


def _variants_of(op: Any) -> list[Any]:
    if op._schema.is_mutable or op.namespace != "aten":
        return []
    packet = op._schema.name.removeprefix("aten::")
    candidates = (*variants.siblings(packet), *variants.siblings(f"{packet}_"))
    mutable = [one for one in candidates if one._schema.is_mutable]
    return [one for one in mutable if variants.functional_of(one) is op]


def _register(op: Any, kernel: Callable[..., Any], above: Any) -> torch.library.Library:
    library = torch.library.Library(op.namespace, "IMPL")
    with warnings.catch_warnings():  # PyTorch warns of the kernel that is replaced
        warnings.simplefilter("ignore")
        for key, call in (("AutogradPrivateUse1", above), ("PrivateUse1", kernel)):
            if call is not None:
                library.impl(op, dynamo.unseen(call), key, allow_override=True)
    pytorch.forget_dispatch(op)
    return library


def _switch(op: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    above_autograd = ladder.above_autograd(op) is not None

    def switch(*args: Any, **kwargs: Any) -> Any:
        if (override := chosen(op)) is None:
            return before(*args, **kwargs)
        run = functools.partial(override.run, op, args, kwargs)
        for trace in ACTIVE.call_trees if above_autograd else ():
            run = functools.partial(trace.overridden, op, args, kwargs, run)
        return run()

    return switch


def _derived_switch(op: Any, functional: Any) -> Callable[..., Any]:
    """Return an in-place or ``out=`` overload's switch: derived while its base is overridden."""
    before = ladder.kernel_of(op)
    derived = ladder.derived(op, functional)

    def switch(*args: Any, **kwargs: Any) -> Any:
        own, of_functional = chosen(op), chosen(functional)
        if own is not None:
            return own.run(op, args, kwargs)
        return (before if of_functional is None else derived)(*args, **kwargs)

    return switch


# --- callables ------------------------------------------------------------------------------------


class _Replaced:
    """A callable of PyTorch's that is replaced: the replacement, its places and users."""

    def __init__(self, original: Callable[..., Any]):
        self.places = callables.places_of(original)
        if not self.places:
            raise ValueError(
                f"{original!r} is in no public module of PyTorch and no loaded module, so its "
                "calls cannot be seen: override the operator that it calls"
            )
        asking = callables.asking(_is_overridden(original), _serve)
        self.function = callables.wrapper_of(original, self.places, asking(original))
        self.users = 0
        _originals[self.function] = original
        callables.replace(self.places, self.function)


_replaced: dict[Any, _Replaced] = {}
# Of all replacements: another thread may have read one's name just before it was put back.
_originals: dict[Any, Callable[..., Any]] = {}


@functools.cache
def _is_overridden(original: Callable[..., Any]) -> Callable[[], bool]:
    return dynamo_constants.question(lambda: chosen(original) is not None)


def _serve(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the override in force, if a tensor of this device is concerned."""
    override = chosen(original)
    if override is None or not _concerns_us((*args, *kwargs.values())):
        return original(*args, **kwargs)
    if pytorch.function_modes():  # modes see the call first, as for PyTorch's own functions
        function = _replaced[original].function
        return torch.overrides.handle_torch_function(function, (), *args, **kwargs)
    return override.run(original, args, kwargs)


def _concerns_us(values: Iterable[Any]) -> bool:
    """Return whether a plain tensor on this device is among the values, and no other kind."""
    found = False
    for value in values:
        if isinstance(value, list | tuple):
            found = found or _concerns_us(value)
        elif isinstance(value, torch.Tensor):
            if type(value).__torch_function__ not in _PLAIN:
                return False
            found = found or value.device.type == pytorch.DEVICE_TYPE
        elif hasattr(type(value), "__torch_function__"):
            return False
    return found


_PLAIN = (torch.Tensor.__torch_function__, torch.nn.Parameter.__torch_function__)


def _use(target: Any) -> None:
    """See the calls of ``target``."""
    with _lock:
        if _is_operator(target):
            _switch_operator(target)
            return
        if target not in _replaced:
            _replaced[target] = _Replaced(target)
        _replaced[target].users += 1


def _release(target: Any) -> None:
    """Put a callable back that has no override any more; an operator keeps its switch."""
    with _lock:
        if (replaced := _replaced.get(target)) is None:
            return
        replaced.users -= 1
        if replaced.users == 0:
            callables.restore(replaced.places, target, replaced.function)
            del _replaced[target]


def register_op(name: str, **options: Any) -> Callable[[Callable], Callable]:
    """Serve an ATen (or custom) overload with a function of ``jax.Array``s, permanently.

    It comes before everything else in the lookup ladder; ``torch_jax.default_env()`` can undo it
    (:meth:`torch_jax.Environment.remove_override`).

    Args:
      name: ``"relu"``, ``"add.Tensor"`` or ``"namespace::op"``.
      **options: ``takes="torch"`` for a function of tensors; for one of arrays those of
        :func:`torch_jax.ops.registry.op`, such as ``static=``.

    Raises:
      ValueError: this PyTorch has no such operator.

    >>> import jax.numpy as jnp
    >>> lib = torch.library.Library("doc", "FRAGMENT")
    >>> _ = lib.define("twice(Tensor x) -> Tensor")
    >>> @register_op("doc::twice", meta=False)
    ... def twice(x):
    ...     return x + x
    >>> torch.ops.doc.twice(torch.ones(2, device="jax")).cpu()
    tensor([2., 2.])
    """
    if (op := variants.overload(name.removeprefix("aten::").removeprefix("aten."))) is None:
        raise ValueError(f"torch {torch.__version__} has no operator {name!r}")
    return functools.partial(install, op, **options)
