"""``torch_jax.jit``: a Python function of tensors, unmodified, as one XLA executable.

The first calls are recorded (:mod:`torch_jax.capture.warm_up`): Python runs, and its operators are
one program. Then the function is run once under a trace (:mod:`torch_jax.capture.capture`):
forward, backward, optimizer and all. Later calls check the guards, play the host's tape, and run
the executable::

    call ─▶ a trace of this key? ── no ─────────────────────────────▶ TRACE ─▶ keep it, return
              │ yes                                                    ▲ │
              ▼                                                        │ │
            guards hold? ── yes ─▶ play the tape, run the program      │ │
              │ no                      ▲                              │ │
              ▼                         │                              │ │
            recheck ── others stand in ─┘                              │ │
              │ Changed: on to the next trace of this key; none left ──┘ │
                                                                         ▼
        OtherNumbers: sort and call again, with other numbers as inputs (_retry_numbers)
        GivenOut: sort and call again, with whole tensors, not copies of parts (_retry_whole)
        DataDependentError, NotTraceableError: recorded, or raised (``fallback``)
"""

from __future__ import annotations

import copy
import dis
import functools
import itertools
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, overload

import torch

from torch_jax import config
from torch_jax._private import jax_core, pytorch
from torch_jax.capture import border, evidence, history, keys
from torch_jax.capture.arguments import Arguments, SortedCall
from torch_jax.capture.host.tape import Changed
from torch_jax.capture.keys import CallKey
from torch_jax.capture.part_arguments import GivenOut
from torch_jax.capture.replay import Replay
from torch_jax.capture.state.places import CacheSize, Place
from torch_jax.capture.state.scout import Scouted, scout
from torch_jax.capture.state.watch import Unscouted
from torch_jax.capture.tracing import OtherNumbers, TraceRequest, trace_and_compile
from torch_jax.capture.training import hooks
from torch_jax.capture.unproven import Unproven
from torch_jax.capture.verify import verified
from torch_jax.capture.warm_up import WarmUp
from torch_jax.core import compilations, costs, locks
from torch_jax.core.active import ACTIVE
from torch_jax.core.tracers import DataDependentError, NotTraceableError
from torch_jax.recorded.lazy import observed


class _Recorded(NamedTuple):
    """In place of a result: the call is to be recorded.

    Attributes:
      call: what is called, None where it cannot be compared with others.
      left: how many such calls are left before a trace; the last one is watched by a scout.
      replay: what is to be held against what the call does, if anything is.
      known: for that, which tensor each array belongs to, by its id.
    """

    call: SortedCall | None
    left: int = 0
    replay: Replay | None = None
    known: dict[int, Any] | None = None


_TWICE = "its results are differentiated twice, outside of it"

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)


class _Jit(Protocol):
    """What :func:`jit` is without a function: a decorator."""

    @overload  # a module is callable too: type checkers take the first that fits
    def __call__(self, function: M) -> M: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R]) -> Jitted[P, R]: ...


@overload
def jit(
    function: None = None,
    *,
    traced: tuple[str, ...] | str = (),
    fallback: str | None = None,
    dynamic: dict[str, dict[int, Any]] | None = None,
    donate: bool = True,
    verify: int | bool = 0,
) -> _Jit: ...
@overload
def jit(  # type: ignore[overload-overlap]
    function: M,
    *,
    traced: tuple[str, ...] | str = (),
    fallback: str | None = None,
    dynamic: dict[str, dict[int, Any]] | None = None,
    donate: bool = True,
    verify: int | bool = 0,
) -> M: ...
@overload
def jit(
    function: Callable[P, R],
    *,
    traced: tuple[str, ...] | str = (),
    fallback: str | None = None,
    dynamic: dict[str, dict[int, Any]] | None = None,
    donate: bool = True,
    verify: int | bool = 0,
) -> Jitted[P, R]: ...
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
      fallback: what to do where Python has to run at each call, since the function needs a value
        that only the device knows (``.item()``, ``if tensor:``), or does what is not proven to be
        the same at each call. ``"record"`` (or ``"eager"``) runs it, and :meth:`Jitted.explain`
        tells why; ``"error"`` raises. The default is the setting ``jit_fallback``: to record.
      dynamic: ``{"x": {0: (16, 32, 64)}}``: pad dim 0 of argument ``x`` up to the next of these
        sizes. An argument named ``x_mask`` that is not given gets a bool tensor of that size,
        true where ``x`` was not padded.
      donate: whether tensors that are written give their memory to the result (default True).
      verify: how many later calls are run eagerly too, and compared; for finding what is stale.

    Raises:
      DataDependentError: with ``fallback="error"``: the function looks at a value of a tensor; with
        the line, and what to do.
      NotTraceableError: with ``fallback="error"``: it does what a compiled call could not repeat,
        such as printing, or what is not understood.

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
    compiled: Jitted[..., Any] = Jitted(module._call_impl, **options)
    compiled.history.name = type(module).__name__
    module._compiled_call_impl = compiled
    return module


_KEPT = "_torch_jax_jit"  # the attribute of an object with what is compiled for its methods


class _Kept(dict):
    """What is compiled for one object; copies of the object and files of it have none of it."""

    def __deepcopy__(self, memo: dict) -> _Kept:
        return _Kept()

    def __reduce__(self) -> tuple:
        return _Kept, ()


class Jitted(Generic[P, R]):
    """A compiled function; made by :func:`jit`."""

    __torch_jax_compiled__ = True  # the watch of another trace looks through to ``function``

    def __init__(
        self,
        function: Callable[..., Any],
        traced: tuple[str, ...] | str = (),
        fallback: str | None = None,
        dynamic: dict[str, dict[int, Any]] | None = None,
        donate: bool = True,
        verify: int | bool = 0,
    ):
        """See :func:`jit`."""
        if fallback not in (None, "record", "eager", "error"):
            raise ValueError(f"fallback must be 'record' or 'error', not {fallback!r}")
        functools.update_wrapper(self, function)
        self.function, self.fallback, self.donate = function, fallback, donate
        self.verify = 2 if verify is True else int(verify)
        self.history = history.History(getattr(function, "__qualname__", repr(function)))
        self._traced_names = {traced} if isinstance(traced, str) else set(traced)
        self._replays: OrderedDict[CallKey, list[Replay]] = OrderedDict()  # the latest first
        self._unproven = Unproven()  # the calls whose Python runs each time, and why
        self._warm_up, self._scouted = WarmUp(), Scouted()
        # numbers in attributes, globals, closures and dicts, by place: inputs of the next program,
        # and those that have to stay constants
        self._varying: dict[tuple, Place] = {}
        self._constant: set[tuple] = set()
        self._may_vary = True  # whether numbers that changed become inputs
        self._whole: set[CallKey] = set()  # calls that take no argument by value
        self._bound: dict[tuple[int, int], Jitted] = {}  # for objects that have no __dict__
        self._arguments = Arguments(function, self._traced_names, dynamic or {})

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """A method compiled for each object that it is called on."""
        if owner is None:
            return self
        # the object keeps what is compiled for it, which holds the object: both go together
        attributes = getattr(owner, "__dict__", None)
        kept = self._bound
        if isinstance(attributes, dict):
            kept = attributes.setdefault(_KEPT, _Kept())
        known = kept.get((id(self), id(owner)))
        if known is None:
            function = self.function.__get__(owner, kind)
            known = kept[id(self), id(owner)] = self._like(function)
        return known

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

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function, compiled."""
        if (
            ACTIVE.tracer is not None
            or ACTIVE.scout is not None
            or not jax_core.is_outside_traces()
            or pytorch.is_transformed()  # by what sees each operator: Python has to run for it
        ):
            return self.function(*args, **kwargs)  # part of a larger program
        if not ACTIVE.call_trees:
            return self._call(args, kwargs)
        with ExitStack() as traces:
            for trace in ACTIVE.call_trees:
                traces.enter_context(trace.compiled_function(self.history.name))
            return self._call(args, kwargs)

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Skip Python where that is proven to change nothing; else run it, recorded."""
        try:
            with locks.RUNNING:
                result = self._retry_numbers(args, kwargs)
        except keys.ArrayArgument as error:
            if not self._records:
                raise
            self.history.runs_python(str(error))
            result = _Recorded(None)
        return self._record(result, args, kwargs) if type(result) is _Recorded else result

    def _record(self, wanted: _Recorded, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call the function itself; its operators run as one program."""
        if self._arguments.dynamic:
            args, kwargs = self._arguments.padded(args, kwargs)
        replay = wanted.replay
        reads_host = replay is not None and replay.reads_host
        seen = evidence.Observation(wanted.known, reads_host)
        with self.history.recorded_call(), observed(seen, compiles=replay is None):
            run = functools.partial(self.function, *args, **kwargs)
            scouted = wanted.call if wanted.left == 1 else None
            result = run() if scouted is None else self._scout(run, scouted)
        if wanted.call is None:
            return result
        if replay is None:
            self._warm_up.recorded(wanted.call.key, seen.graphs)
        else:
            self._compare(wanted.call, replay, seen.graphs)
        return result

    def _scout(self, run: Callable[[], Any], call: SortedCall) -> Any:
        """Record, and find out whether a trace has a chance."""
        self._warm_up.once_more(call.key)  # where the function raises
        world = keys.world()
        result, doubt, passes = scout(run, self.function, call.leaves, self._scouted)
        if passes:
            return result
        if doubt is None and keys.world() != world:
            doubt = "it leaves a mode or a setting other than it was"
        if doubt is None:
            self._warm_up.left(call.key, False)
            border.tell_of_second_derivatives(result, lambda: self._run_each_time(call, _TWICE))
        else:
            self._run_each_time(call, doubt)
        return result

    def _compare(self, call: SortedCall, replay: Replay, graphs: list[evidence.Graph]) -> None:
        """Give up skipping Python where it did another thing than the program does."""
        found = replay.evidence.difference(graphs, bool(replay.program.numbers))
        if found is None:
            return
        self._replays.pop(call.key, None)
        if found.is_from_before:  # no call has run the program yet
            self._warm_up.start_again(call.key)
            self._warm_up.recorded(call.key, graphs)
            return
        self._run_each_time(call, found.text)
        warnings.warn(
            f"{self.history.name} under torch_jax.jit was not proven to do the same at each "
            f"call, though it seemed so: {found.text}. Its Python runs at each call from now "
            "on; results since the last check may be wrong. Please report this, with what "
            "torch_jax.explain(function) says.",
            stacklevel=4,
        )

    def _retry_numbers(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call, and again while other numbers had better be inputs of the program.

        This ends, since a number becomes an input once and a constant once at most.
        """
        while True:
            try:
                return self._retry_whole(args, kwargs)
            except OtherNumbers:
                pass

    def _retry_whole(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call with copies of parts of tensors, or with the parts where a copy does not do."""
        call = self._arguments.sort(args, kwargs)
        if not (call.parts and call.key in self._whole):
            try:
                return self._replay_or_trace(call)
            except GivenOut:
                self._whole.add(call.key)
        return self._replay_or_trace(self._arguments.sort(args, kwargs, whole=True))

    def _replay_or_trace(self, call: SortedCall) -> Any:
        """Run the first trace of this key whose guards hold; trace where there is none."""
        key = call.key
        if key in self._unproven:
            return _Recorded(call)
        reason = None
        for replay in self._replays.get(key, ()):
            try:
                if call.parts:
                    replay.refuse_written(call.parts)
                if self.verify > replay.verified:
                    return self._verified(replay, call)
                if replay.evidence is not None and replay.evidence.is_due():
                    replay.check(call.leaves)
                    known = evidence.known_arrays(replay, call.leaves)
                    return _Recorded(call, 0, replay, known)
                result = replay(call.leaves)
                self._replays.move_to_end(key)
                self._unproven.hit()
                return result
            except Changed as changed:
                reason = reason or str(changed)
                self._let_vary(changed.places)
        if self._records:
            if self._unproven.has_alike(key):
                return _Recorded(call)
            if not self._warm_up.pays(key):
                self.history.runs_python("it takes little beside its operators")
                return _Recorded(call)
            left = self._warm_up.left(key, reason is not None)
            if left:
                return _Recorded(call, left)
        if reason is None:
            self._let_change(key)
        reason = reason or self._new_key(key)
        if self._records:
            too_often = self._unproven.miss(key, reason)
            if too_often is not None:
                return self._run_each_time(call, too_often)
        return self._trace_and_keep(call, reason)

    def _trace_and_keep(self, call: SortedCall, reason: str | None) -> Any:
        """Trace the function, for this call and later ones; ``reason`` is why it is done again."""
        _install()
        start, before = time.perf_counter(), compilations.here()
        try:
            with costs.measured("compile", self.history.name):
                replay, result = trace_and_compile(self._request(call))
        except OtherNumbers as other:
            self._fix(call.key.form, other.numbers)
            raise
        except Unscouted:
            if not self._records:
                raise
            return _Recorded(call, 1)
        except (DataDependentError, NotTraceableError) as error:
            if not self._records:
                raise
            return self._run_each_time(call, str(error))
        except BaseException as error:
            if not (self._records and _is_the_functions(error)):
                raise
            return _Recorded(call, 1)  # it raises by itself, and leaves what it leaves
        seconds, programs = time.perf_counter() - start, compilations.here().minus(before)
        self.history.note_trace(reason, replay, seconds, programs)
        if replay.once_because is None:
            self._keep(call.key, replay)
        else:
            self.history.not_kept(replay.once_because)
        if replay.unproven is not None and self._records:
            self._run_each_time(call, replay.unproven)
        return result

    @property
    def _records(self) -> bool:
        """Whether Python that is not proven runs at each call; otherwise it is an error."""
        return (self.fallback or config.get("jit_fallback")) != "error"

    def _run_each_time(self, call: SortedCall, why: str) -> _Recorded:
        """Have Python run at all calls with this key."""
        self._unproven.add(call.key, why)
        self.history.runs_python(why)
        return _Recorded(call)

    def _request(self, call: SortedCall) -> TraceRequest:
        leaves, key, parts = call
        return TraceRequest(
            self.function, leaves, key.form, key.numbers, self.donate, parts,
            changing=self._arguments.changing.get(key.form, frozenset()),
            places=tuple(self._varying.values()), is_strict=not self._records,
            scouted=self._scouted if self._records else None,
        )  # fmt: skip

    def _keep(self, key: CallKey, replay: Replay) -> None:
        if any(isinstance(place, CacheSize) for place in replay.guards.places):
            self._may_vary = False  # a cached function would keep numbers
        graphs = self._warm_up.graphs(key)
        if graphs is not None:
            replay.evidence = evidence.Evidence(None if replay.steps else graphs)
        self._replays[key] = [replay, *self._replays.pop(key, ())]
        kept = sum(map(len, self._replays.values()))
        while kept > config.get("jit_cache_size"):
            oldest = next(iter(self._replays))
            self._replays[oldest].pop()
            if not self._replays[oldest]:
                del self._replays[oldest]
            kept -= 1

    def _run_eagerly(self, call: SortedCall) -> Any:
        args, kwargs = call.unflatten()
        return self.function(*args, **kwargs)

    def _verified(self, replay: Replay, call: SortedCall) -> Any:
        return verified(replay, call.leaves, functools.partial(self._run_eagerly, call))

    def _new_key(self, key: CallKey) -> str | None:
        """Why no trace fits these arguments, None for the first call of all."""
        if not self._replays:
            return None
        return keys.difference(next(reversed(self._replays)), key)

    # --- numbers as inputs ------------------------------------------------------------------------

    def _let_change(self, key: CallKey) -> None:
        """If number arguments are the only difference from a known key: make them inputs."""
        if self._may_vary and self._arguments.let_change(key, self._replays):
            for replay in itertools.chain.from_iterable(self._replays.values()):
                self._let_vary(replay.guards.varying())
            raise OtherNumbers

    def _let_vary(self, places: Iterable[Place]) -> None:
        """Make the numbers in these places inputs of the next program."""
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

    # --- looking inside ---------------------------------------------------------------------------

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The program for these arguments, traced and compiled but not run: see :class:`Lowered`.

        The trace is not kept, and nothing it changed stays changed.
        """
        _install()
        leaves, key, _ = self._arguments.sort(args, kwargs, whole=True)
        request = TraceRequest(self.function, leaves, key.form, key.numbers, self.donate, run=False)
        with locks.RUNNING:
            replay, _ = trace_and_compile(request)
        return Lowered(replay.program)

    def explain(self) -> history.Explanation:
        """What was traced, compiled, captured, and why; an object that prints as a few lines."""
        return self.history.explanation()

    def clear_cache(self) -> None:
        """Forget every trace of this function."""
        self._replays.clear()
        self._unproven.clear()
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


def _is_the_functions(error: BaseException) -> bool:
    """Whether an error comes of what the function does, and not from outside, as a signal's."""
    if isinstance(error, Exception):
        return not isinstance(error, OtherNumbers | GivenOut)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code.co_code
    return dis.opname[code[trace.tb_lasti]] == "RAISE_VARARGS"


def _install() -> None:
    """Hear of optimizers and schedulers; once, and of new scheduler classes at each trace."""
    hooks.install()
    hooks.patch_schedulers()
