"""``torch_jax.jit``: a Python function of tensors, unmodified, as one XLA executable.

The first call runs the function once, under a trace (:mod:`torch_jax.capture.capture`): forward,
backward, optimizer and all. Later calls check the guards, play the host's tape, and run the
executable.
"""

from __future__ import annotations

import copy
import functools
import itertools
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.capture import history, part_arguments
from torch_jax.capture.host.tape import Changed
from torch_jax.capture.replay import Traced
from torch_jax.capture.state import changing_numbers
from torch_jax.capture.state.places import CacheSize, Place
from torch_jax.capture.tracing import OtherNumbers, trace
from torch_jax.capture.training import hooks
from torch_jax.capture.trees import flatten
from torch_jax.core import forks
from torch_jax.core.active import ACTIVE
from torch_jax.core.tracers import DataDependentError, NotTraceableError
from torch_jax.environment import environment, overrides
from torch_jax.memory.storage import is_jax

_LOCK: Any = threading.RLock()
_installed = False


def _lock_out() -> None:
    """In a forked child: a compiled call raises before it has done anything."""
    global _LOCK
    _LOCK = forks.Refusal()


forks.listeners.append(_lock_out)


def jit(function: Any = None, **options: Any) -> Any:
    """Compile a function of tensors, or a module, with XLA; without rewriting it.

    The function may do what a training step does: run modules, call ``backward()`` and
    ``optimizer.step()``, move a scheduler on, write into tensors it finds. Its first call traces
    it, which takes seconds for a large model; later calls run one executable. What the trace
    relied on – shapes and dtypes, Python values that were read, modes – is checked at each call,
    and the function is traced anew where something changed; numbers of optimizers may change.
    :meth:`Jitted.explain` tells what happened.

    Args:
      function: what to compile. An ``nn.Module`` is compiled in place, and stays what it is.
      traced: names of float arguments that become inputs instead of being fixed by value.
      fallback: ``"error"`` (default) or ``"eager"``: what to do where the function needs a value
        that only the device knows (``.item()``, ``if tensor:``). Eager calls are counted.
      dynamic: ``{"x": {0: (16, 32, 64)}}``: pad dim 0 of argument ``x`` up to the next of these
        sizes. An argument named ``x_mask`` that is not given gets a bool tensor of that size,
        true where ``x`` was not padded.
      donate: whether tensors that are written give their memory to the result (default True).
      verify: how many later calls are run eagerly too, and compared; for finding what is stale.

    Raises:
      DataDependentError: the function looks at a value of a tensor; with the line, and what to do.
      NotTraceableError: it does what a compiled call could not repeat, such as printing.

    >>> weight = torch.ones(2, device="jax")
    >>> @jit
    ... def step(x):
    ...     weight.mul_(x)
    ...     return weight.sum()
    >>> step(torch.tensor([2., 3.], device="jax")).item()
    5.0
    >>> step(torch.tensor([2., 3.], device="jax")).item(), weight.cpu()
    (13.0, tensor([4., 9.]))
    """
    if function is None:
        return functools.partial(jit, **options)
    if isinstance(function, torch.nn.Module):
        return _jit_module(function, options)
    return Jitted(function, **options)


def lower(function: Any, *args: Any, **kwargs: Any) -> Lowered:
    """The program that :func:`jit` makes of a function or module, for these arguments; not run.

    >>> x = torch.ones(2, 3, device="jax")
    >>> program = lower(lambda x: x @ x.t(), x)
    >>> "stablehlo.dot_general" in program.as_text(), program.cost_analysis()["flops"] > 0
    (True, True)
    """
    call = function._call_impl if isinstance(function, torch.nn.Module) else function
    return Jitted(call).lower(*args, **kwargs)


def _jit_module(module: Any, options: dict[str, Any]) -> Any:
    """Compile a module's call in place; PyTorch leaves the slot out when it saves the module."""
    compiled = Jitted(module._call_impl, **options)
    compiled.record.name = type(module).__name__
    module._compiled_call_impl = compiled
    return module


class Jitted:
    """A compiled function; made by :func:`jit`."""

    __torch_jax_compiled__ = True  # a walk over Python's state knows its objects by this

    def __init__(
        self,
        function: Callable[..., Any],
        traced: tuple[str, ...] | str = (),
        fallback: str = "error",
        dynamic: dict[str, dict[int, Any]] | None = None,
        donate: bool = True,
        verify: int | bool = 0,
    ):
        """See :func:`jit`."""
        if fallback not in ("error", "eager"):
            raise ValueError(f"fallback must be 'error' or 'eager', not {fallback!r}")
        functools.update_wrapper(self, function)
        self.function, self.fallback, self.donate = function, fallback, donate
        self.verify = 2 if verify is True else int(verify)
        self.record = history.Record(getattr(function, "__qualname__", repr(function)))
        self._traced_names = {traced} if isinstance(traced, str) else set(traced)
        self._entries: OrderedDict[tuple, list[Traced]] = OrderedDict()
        self._eager: set[tuple] = set()
        self._varying: dict[tuple, Place] = {}  # numbers that are no arguments but inputs
        self._constant: set[tuple] = set()  # of such, those that cannot be
        self._may_vary = True  # whether numbers become inputs by themselves
        self._whole: set[tuple] = set()  # calls that take no argument by value
        self._bound: dict[int, Jitted] = {}
        self._arguments = _Arguments(function, self._traced_names, dynamic or {})

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """A method compiled for each object that it is called on."""
        if owner is None:
            return self
        known = self._bound.get(id(owner))
        if known is None:
            known = self._bound[id(owner)] = self._like(self.function.__get__(owner, kind))
            self._forget_with(owner)
        return known

    def _forget_with(self, owner: Any) -> None:
        """Keep what is compiled for an object as long as the object."""
        try:
            finalizer = weakref.finalize(owner, self._bound.pop, id(owner), None)
            finalizer.atexit = False
        except TypeError:  # one that cannot be referred to weakly is kept by its compiled method
            pass

    def _like(self, function: Callable[..., Any]) -> Jitted:
        names, dynamic = tuple(self._traced_names), self._arguments.dynamic
        return Jitted(function, names, self.fallback, dynamic, self.donate, self.verify)

    def __deepcopy__(self, memo: dict) -> Jitted:
        return self._like(copy.deepcopy(self.function, memo))

    def __reduce__(self) -> tuple:
        names, dynamic = tuple(self._traced_names), self._arguments.dynamic
        return Jitted, (
            self.function, names, self.fallback, dynamic, self.donate, self.verify
        )  # fmt: skip

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, compiled."""
        if ACTIVE.tracer is not None or not pytorch.is_outside_traces():
            return self.function(*args, **kwargs)  # part of a larger program
        with _LOCK:
            if not ACTIVE.call_trees:
                return self._run(args, kwargs)
            with ExitStack() as traces:
                for trace in ACTIVE.call_trees:
                    traces.enter_context(trace.compiled_function(self.record.name))
                return self._run(args, kwargs)

    def _run(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        while True:
            try:
                return self._run_sorted(args, kwargs)
            except OtherNumbers:
                pass

    def _run_sorted(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        leaves, form, key, parts = self._arguments.sort(args, kwargs)
        if not (parts and key in self._whole):
            try:
                return self._call(leaves, form, key, parts)
            except part_arguments.GivenOut:
                self._whole.add(key)
        leaves, form, key, parts = self._arguments.sort(args, kwargs, whole=True)
        return self._call(leaves, form, key, parts)

    def _call(self, leaves: list[Any], form: Any, key: tuple, parts: dict[int, Any]) -> Any:
        if key in self._eager:
            self.record.eager += 1
            return self._run_eagerly(leaves, form)
        reason = None
        for entry in self._entries.get(key, ()):
            try:
                if parts:
                    entry.refuse_written(parts)
                if self.verify > entry.verified:
                    return self._verified(entry, leaves, form)
                result = entry(leaves)
                self._entries.move_to_end(key)
                return result
            except Changed as changed:
                reason = reason or str(changed)
                self._let_vary(changed.places)
        if reason is None:
            self._let_change(key)
        return self._trace(leaves, form, key, parts, reason or self._new_key(key))

    def _let_change(self, key: tuple) -> None:
        """Make number arguments inputs of the next program, where nothing else is new."""
        if self._may_vary and self._arguments.let_change(key, self._entries):
            for entry in itertools.chain.from_iterable(self._entries.values()):
                self._let_vary(entry.guards.varying())
            raise OtherNumbers

    def _let_vary(self, places: Iterable[Place]) -> None:
        """Make the numbers that stand there inputs of the next program."""
        if self._may_vary:
            self._varying |= {p.address: p for p in places if p.address not in self._constant}

    def _fix(self, form: Any, numbers: list[Any]) -> None:
        """Make these numbers, arguments or places, constants of the programs again."""
        for number in numbers:
            if isinstance(number, Place):
                self._constant.add(number.address)
                self._varying.pop(number.address, None)
            else:
                self._arguments.fix(form, number)

    def _new_key(self, key: tuple) -> str | None:
        """Why no trace fits these arguments, None for the first call of all."""
        if not self._entries:
            return None
        last = next(reversed(self._entries))
        return history.difference(last, key, WORLD_NAMES)

    def _trace(
        self, leaves: list[Any], form: Any, key: tuple, parts: dict[int, Any], reason: str | None
    ) -> Any:
        _install()
        start = time.perf_counter()
        try:
            changing = self._arguments.changing.get(form, frozenset())
            places = self._varying.values()
            entry, result = trace(
                self.function, leaves, form, key[3], self.donate, parts, changing, places
            )
        except OtherNumbers as other:
            self._fix(form, other.numbers)
            raise
        except (DataDependentError, NotTraceableError) as error:
            if self.fallback != "eager":
                raise
            if parts:  # an eager call may write them
                raise part_arguments.GivenOut from error
            self._eager.add(key)
            self.record.fell_back(str(error))
            return self._run_eagerly(leaves, form)
        self.record.traced(reason, entry, time.perf_counter() - start)
        if entry.repeatable is None:
            self._keep(key, entry)
        else:
            self.record.not_kept(entry.repeatable)
        return result

    def _keep(self, key: tuple, entry: Traced) -> None:
        if any(isinstance(place, CacheSize) for place in entry.guards.places):
            self._may_vary = False  # a cached function would keep numbers
        self._entries[key] = [entry, *self._entries.pop(key, ())]
        kept = sum(map(len, self._entries.values()))
        while kept > config.get("jit_cache_size"):
            oldest = next(iter(self._entries))
            self._entries[oldest].pop()
            if not self._entries[oldest]:
                del self._entries[oldest]
            kept -= 1

    def _run_eagerly(self, leaves: list[Any], form: Any) -> Any:
        args, kwargs = form.unflatten(leaves)
        return self.function(*args, **kwargs)

    def _verified(self, entry: Traced, leaves: list[Any], form: Any) -> Any:
        """Run a call both ways, keep what the eager one did, raise where they differ."""
        from torch_jax.capture.verify import verified

        return verified(entry, leaves, functools.partial(self._run_eagerly, leaves, form))

    # --- looking inside ---------------------------------------------------------------------------

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The program for these arguments, traced and compiled but not run: see :class:`Lowered`.

        The trace is not kept, and nothing it changed stays changed.
        """
        _install()
        leaves, form, key, _ = self._arguments.sort(args, kwargs, whole=True)
        with _LOCK:
            entry, _ = trace(self.function, leaves, form, key[3], self.donate, run=False)
        return Lowered(entry.program)

    def explain(self) -> history.Explanation:
        """What was traced, compiled, captured, and why; an object that prints as a few lines."""
        return self.record.explanation()

    def clear_cache(self) -> None:
        """Forget every trace of this function."""
        self._entries.clear()
        self._eager.clear()
        self._whole.clear()


class Lowered:
    """A program that was compiled but not run."""

    def __init__(self, program: Any):
        self._program = program

    def as_text(self, dialect: str = "stablehlo") -> str:
        """The program as text: ``stablehlo``, or ``hlo`` as XLA optimized it."""
        if dialect == "stablehlo":
            return self._program.lowered.as_text()
        if dialect == "hlo":
            return self._program.call.as_text()
        raise ValueError(f"dialect must be 'stablehlo' or 'hlo', not {dialect!r}")

    def cost_analysis(self) -> Any:
        """XLA's estimates: ``flops``, ``bytes accessed`` …"""
        return self._program.call.cost_analysis()

    def memory_analysis(self) -> Any:
        """The executable's memory: ``argument_size_in_bytes``, ``temp_size_in_bytes`` …"""
        return self._program.call.memory_analysis()


class _Arguments:
    """How the arguments of one function are sorted into leaves and a key."""

    def __init__(self, function: Any, traced: set[str], dynamic: dict[str, dict[int, Any]]):
        self.dynamic, self.traced = dynamic, traced
        self._named = traced or dynamic
        self.changing: dict[Any, frozenset[int]] = {}  # by form: numbers that are inputs
        self._constant: set[tuple] = set()  # form and index of those that cannot be
        self._signature: Any = None
        if self._named:
            import inspect

            self._signature = inspect.signature(function)
            unknown = (traced | dynamic.keys()) - self._signature.parameters.keys()
            if unknown:
                raise TypeError(f"{function} has no arguments {sorted(unknown)}")

    def sort(
        self, args: tuple, kwargs: dict[str, Any], whole: bool = False
    ) -> tuple[list[Any], Any, tuple, dict[int, torch.Tensor]]:
        """The leaves of the arguments, their tree, and what a trace fixes of both.

        Also the leaves that are given by value (:mod:`torch_jax.capture.part_arguments`), none if
        ``whole``.
        """
        numbers: frozenset[int] = frozenset()
        if self._named:
            args, kwargs = self._padded(args, kwargs)
        leaves, form = flatten(args, kwargs)
        if self.traced:
            numbers = self._number_leaves(args, kwargs)
        if self.changing and form in self.changing:
            numbers |= {
                i for i in self.changing[form] if type(leaves[i]) in changing_numbers.CLASSES
            }
        leaves, by_value = (leaves, {}) if whole else part_arguments.by_value(leaves)
        parts = [type(leaf) if i in numbers else _leaf_key(leaf) for i, leaf in enumerate(leaves)]
        return leaves, form, (form, _world(), _aliases(leaves), numbers, *parts), by_value

    def let_change(self, key: tuple, known: Iterable[tuple]) -> bool:
        """Make numbers inputs of the program where nothing else differs from a known key."""
        for old in known:
            differ = [i for i, (a, b) in enumerate(zip(old, key, strict=False)) if a != b]
            if differ and all(i > 3 and _are_numbers(old[i], key[i]) for i in differ):
                form, found = key[0], {i - 4 for i in differ}
                if not any((form, i) in self._constant for i in found):
                    self.changing[form] = self.changing.get(form, frozenset()) | found
                    return True
        return False

    def fix(self, form: Any, index: int) -> None:
        """Make a number a constant of the programs again, for good."""
        self._constant.add((form, index))
        self.changing[form] -= {index}

    def _padded(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        bound = self._signature.bind(*args, **kwargs)
        for name, sizes in self.dynamic.items():
            if name in bound.arguments:
                self._pad(bound.arguments, name, sizes)
        for name in self.traced:
            value = bound.arguments.get(name)
            if type(value) is float:  # an object of its own, by which its leaf is known
                bound.arguments[name] = float.fromhex(value.hex())
        return bound.args, bound.kwargs

    def _pad(self, given: dict[str, Any], name: str, sizes: dict[int, Any]) -> None:
        tensor = given[name]
        for dim, buckets in sizes.items():
            length = tensor.shape[dim]
            fitting = [size for size in buckets if size >= length]
            if not fitting:
                raise ValueError(
                    f"argument {name!r} has size {length} in dim {dim}, more than the largest "
                    f"bucket, {max(buckets)}"
                )
            size = min(fitting)
            mask = f"{name}_mask"
            if mask in self._signature.parameters and given.get(mask) is None:
                given[mask] = torch.arange(size, device=tensor.device) < length
            extra = list(tensor.shape)
            extra[dim] = size - length
            if extra[dim]:
                tensor = torch.cat([tensor, tensor.new_zeros(extra)], dim)
        given[name] = tensor

    def _number_leaves(self, args: tuple, kwargs: dict[str, Any]) -> frozenset[int]:
        bound = self._signature.bind(*args, **kwargs)
        marked = {id(v) for n, v in bound.arguments.items() if n in self.traced}
        leaves, _ = flatten(args, kwargs)
        return frozenset(
            i for i, leaf in enumerate(leaves) if type(leaf) is float and id(leaf) in marked
        )


def _are_numbers(was: Any, now: Any) -> bool:
    """Whether a leaf was a number, and is another one of its class."""
    return (
        type(was) is type(now) is tuple and was[0] is now[0] and now[0] in changing_numbers.CLASSES
    )


def _leaf_key(leaf: Any) -> Any:
    """What a trace fixes of one leaf of the arguments."""
    if isinstance(leaf, torch.Tensor):
        if not is_jax(leaf):
            return leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.requires_grad
        memory: Any = leaf.untyped_storage().array  # type: ignore[attr-defined]
        if leaf.shape == memory.shape and leaf.is_contiguous():
            return memory.shape, leaf.dtype, memory.dtype, leaf.requires_grad, leaf.is_conj()
        return (
            memory.shape, leaf.dtype, memory.dtype, leaf.requires_grad, leaf.is_conj(), leaf.shape,
            leaf.stride(), leaf.storage_offset(), leaf.is_neg(),
        )  # fmt: skip
    if isinstance(leaf, float):
        return float, repr(leaf)
    if type(leaf).__module__ == "numpy" and getattr(leaf, "ndim", None):
        raise TypeError(
            "a NumPy array cannot be an argument of a function under torch_jax.jit, which would "
            "fix its values: pass torch.from_numpy(x)"
        )
    return type(leaf), leaf if _is_hashable(leaf) else _ById(leaf)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


class _ById:
    """Stands in a key for an object that cannot."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.value is other.value


def _aliases(leaves: list[Any]) -> tuple[int, ...] | None:
    """Which tensors among the leaves share a storage, None where none do."""
    ids = [id(leaf.untyped_storage()) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len(set(ids)) == len(ids):
        return None
    return tuple(map(ids.index, ids))


def _world() -> tuple:
    """Modes and settings that change what the same code does."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        bool(torch.is_autocast_enabled("jax")) and torch.get_autocast_dtype("jax"),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        pytorch.default_device(),
        config.version(),
        environment.is_enabled(),
        overrides.state(),
    )


WORLD_NAMES = (
    "grad mode",
    "inference mode",
    "the default dtype",
    "autocast on jax",
    "autocast on cpu",
    "deterministic algorithms",
    "the float32 matmul precision",
    "the default device",
    "a setting of torch_jax",
    "the environment",
    "an override",
)


def _install() -> None:
    """Hear of optimizers and schedulers; once, and of new scheduler classes at each trace."""
    global _installed
    if not _installed:
        hooks.install()
        _installed = True
    hooks.patch_schedulers()
