"""``torch_jax.jit``: a Python function of tensors, unmodified, as one XLA executable.

Python runs at every call. What it does – forward, backward, optimizer – is recorded
(:mod:`torch_jax.recorded`) and runs as one program, which is found by the operators that led to it.
So nothing that Python reads can be stale. Who promises that a function is *pure* has its Python
skipped (:mod:`torch_jax.capture.pure`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

import torch

from torch_jax._private import jax_core, pytorch
from torch_jax.capture import history, hooks, keys
from torch_jax.capture.arguments import Arguments
from torch_jax.capture.observer import Observer
from torch_jax.capture.pure import Pure, recorded
from torch_jax.compiler.lowered import Lowered
from torch_jax.core import absent
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node
from torch_jax.core.tracers import DataDependentError
from torch_jax.memory.storage import give_back
from torch_jax.recorded.lazy import is_recording, observed

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)

# Arguments of earlier releases, and what to write instead.
_OLD = {
    "traced": "it is not needed: numbers are inputs of the program",
    "fallback": "it is not needed: Python runs at each call; pure=True skips it",
    "verify": 'write jit(pure=True, audit="error")',
    "donate": "it is not needed: a program writes over arrays that nothing else can reach",
}


class _Options(TypedDict, total=False):
    """The options of :func:`jit`."""

    pure: bool
    audit: str
    dynamic: dict[str, dict[int, Any]] | None


class _Jit(Protocol):
    """The decorator that :func:`jit` is without a function."""

    @overload  # a module is callable too: type checkers take the first that fits
    def __call__(self, function: M) -> M: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R]) -> Jitted[P, R]: ...


@overload
def jit(function: None = None, **options: Unpack[_Options]) -> _Jit: ...
@overload  # a module is callable too, as above
def jit(function: M, **options: Unpack[_Options]) -> M: ...  # type: ignore[overload-overlap]
@overload
def jit(function: Callable[P, R], **options: Unpack[_Options]) -> Jitted[P, R]: ...
def jit(function: Any = None, **options: Any) -> Any:
    """Compile what a function of tensors, or a module, does with XLA; without rewriting it.

    The function may do what a training step does: run modules, call ``backward()`` and
    ``optimizer.step()``, move a scheduler on, write into tensors it finds. Its Python runs at each
    call, and all its operators run as one program, compiled once for each sequence of them. Where
    Python looks at a value, the program ends there and another begins. Results are differentiable:
    the backward pass of a loop around a compiled module is one program, too.

    Args:
      function: what to compile. An ``nn.Module`` is compiled in place, and stays what it is.
      pure: the promise that, beside its arguments, the function reads and writes tensors, random
        generators and the numbers of optimizers, and nothing else that changes. Its Python then
        runs once for each kind of call – shapes, dtypes, Python values of arguments, modes – and is
        skipped from then on.
      audit: what to do where a pure function's Python, run all the same at the 2nd, 4th, 8th … and
        every 1,000th call, does something else than before: "warn", and record the function from
        then on; or "error".
      dynamic: ``{"x": {0: (16, 32, 64)}}``: pad dim 0 of argument ``x`` up to the next of these
        sizes. An argument named ``x_mask`` that is not given gets a bool tensor of that size,
        true where ``x`` was not padded.

    Raises:
      DataDependentError: with ``pure=True``: the function looks at a value of a tensor.
      NotTraceableError: with ``pure=True``: it does what a later call could not repeat, such as
        writing into a CPU tensor.

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
        compiled: Jitted[..., Any] = Jitted(function._call_impl, **options)
        name = compiled.history.name = type(function).__name__
        compiled.history.now = compiled.history.now._replace(name=name)
        function._compiled_call_impl = compiled  # a slot that PyTorch does not save
        return function
    return Jitted(function, **options)


def lower(function: Any, *args: Any, **kwargs: Any) -> Lowered:
    """Return the program that :func:`jit` makes of a function or module for these arguments.

    The function's Python runs; its program does not, and tensors are left as they were.

    >>> x = torch.ones(2, 3, device="jax")
    >>> program = lower(lambda x: x @ x.t(), x)
    >>> "stablehlo.dot_general" in program.as_text(), program.cost_analysis()["flops"] > 0
    (True, True)
    """
    call = function._call_impl if isinstance(function, torch.nn.Module) else function
    return Jitted(call).lower(*args, **kwargs)


_KEPT = "_torch_jax_jit"  # the attribute of an object with what is compiled for its methods


class _Kept(dict):
    """The compiled methods of one object; copies of the object, and files, do without them."""

    def __reduce__(self) -> tuple:
        return _Kept, ()


class Jitted(Generic[P, R]):
    """A compiled function; made by :func:`jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        pure: bool = False,
        audit: str = "warn",
        dynamic: dict[str, dict[int, Any]] | None = None,
        **old: Any,
    ):
        for name in old:
            if name not in _OLD:
                raise TypeError(f"jit() got an unexpected keyword argument {name!r}")
            warnings.warn(f"jit({name}=...): {_OLD[name]}", DeprecationWarning, stacklevel=3)
        if audit not in ("warn", "error"):
            raise ValueError(f"audit must be 'warn' or 'error', not {audit!r}")
        functools.update_wrapper(self, function)
        self.function, self.dynamic = function, dynamic or {}
        self._options = pure, audit, self.dynamic
        self.history = history.History(getattr(function, "__qualname__", repr(function)))
        self._bound: dict[tuple[int, int], Jitted] = {}  # for objects that have no __dict__
        self._arguments = Arguments(function, self.dynamic)
        self._pure = Pure(function, self._arguments, self.history, audit) if pure else None

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """Return a method compiled for each object that it is called on."""
        if owner is None:
            return self
        # the object keeps what is compiled for it, which holds the object: both go together
        attributes = getattr(owner, "__dict__", None)
        kept = self._bound
        if isinstance(attributes, dict):
            kept = attributes.setdefault(_KEPT, _Kept())
        if (known := kept.get((id(self), id(owner)))) is None:
            function = self.function.__get__(owner, kind)
            known = kept[id(self), id(owner)] = Jitted(function, *self._options)
        return known

    def __reduce__(self) -> tuple:
        return Jitted, (self.function, *self._options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if (
            is_recording()
            or ACTIVE.tracer is not None
            or not jax_core.is_outside_traces()
            or pytorch.is_transformed()  # by what sees each operator: Python has to run for it
        ):
            return self.function(*args, **kwargs)  # part of a larger program
        hooks.install()
        given: Any = self._arguments.padded(args, kwargs) if self.dynamic else (args, kwargs)
        with ExitStack() as traces:
            for trace in ACTIVE.call_trees:
                traces.enter_context(trace.compiled_function(self.history.name))
            return self._call(*given)

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run the program of a pure call; else the function, recorded."""
        if self._pure is not None and not self._pure.is_broken and not absent.is_chosen():
            try:
                return self._pure(args, kwargs)
            except keys.ArrayArgument as error:
                self._pure.give_up(str(error), stacklevel=4)
        return recorded(self.function, self.history, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Return the program for these arguments, compiled but not run: see :class:`Lowered`."""
        hooks.install()
        observer = Observer([], {})
        with observed(observer):
            recorder = ACTIVE.recorder
            recording = recorder.recording
            try:
                with observer.watching():
                    result = [self.function(*args, **kwargs)]
                if recorder.recording is not recording:
                    raise DataDependentError(
                        "a value of a tensor is looked at while the function runs, so that it is "
                        "no one program"
                    )
                program = recording.lowered()
                result.clear()  # which the program gives, since it was alive
            finally:
                recorder.leave(recording)
                _put_back(observer)
        return Lowered(program)

    def explain(self) -> history.Explanation:
        """Return what was recorded, compiled, skipped, and why; prints as a few lines."""
        return self.history.now

    def clear_cache(self) -> None:
        """Forget every program of this function that skips Python."""
        if self._pure is not None:
            self._pure.clear()


def _put_back(observer: Observer) -> None:
    """Give each storage what it held, and each tensor the gradient that it had."""
    met = observer.storages.met
    written = [one for one in met if type(one.storage.array) is Node]
    give_back([one.storage for one in written], [one.old() for one in written])
    for gradient in observer.optimizers.gradients.values():
        gradient.tensor.grad = gradient.before
    pytorch.set_versions([one.tensor for one in met], [one.version for one in met])
    observer.draws.undo()
