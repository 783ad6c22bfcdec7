"""Recording: operators are written down when they are called, and run when a value is looked at.

The kernels hand their compiled entries and the memories behind their tensors to the recorder of the
thread, and get nodes (:class:`torch_jax.core.node.Node`) for the arrays to come. A recording is run
when the elements of one of its nodes are asked for, at the end of a block, and when it has grown
too long; results that are unreachable by then are not computed.

Where PyTorch's kernels run new graphs, an operator that is called for the first time with such
operands runs at once, and so do all behind it in this recording: nothing is written down of them.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from torch_jax import config
from torch_jax.budgets import ELEMENTS_OF_A_SMALL_OPERATOR, PLACES_REMEMBERED
from torch_jax.core import absent, errors, forks, policies, signals, tracers
from torch_jax.core.node import Integers, Node, NotRecordable
from torch_jax.core.numbers import GivenNumber
from torch_jax.core.x64 import x64
from torch_jax.memory import flags, sharding, transfer
from torch_jax.memory.storage import tensors_in
from torch_jax.memory.windows import Place, operand
from torch_jax.recorded import bounds, path
from torch_jax.recorded.bodies import body_of
from torch_jax.recorded.metrics import COUNTS, explain
from torch_jax.recorded.one_by_one import at_once, compile_nothing, make, run_one_by_one
from torch_jax.recorded.path import LEAF, MET, MOVING, NUMBERS, ROOT, WORDS, State, Step, source_of
from torch_jax.recorded.program import ARRAYS, SILENT, Numbered, Program, live, program_for

_UINT32 = np.dtype(np.uint32)
OPEN: list[Any] = []  # the ``elsewhere.Programs`` of each block of ``compile_for`` that is open
_warned: list[str] = []
# Entries whose integers have differed where all else was the same: inputs from then on.
_moving: set[int] = set()
# The integers of operators, by entry and by how many operators came before.
_integers_at: dict[tuple[int, int], tuple] = {}


class Recording:
    """A sequence of operators that is being written down, or has been run."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        # Written down, each by one ``append``: the state that the tree of paths is in, the nodes of
        # the results, and the Python numbers and the arrays that this run is given.
        self.log: list[tuple[State, tuple, list, tuple]] = [(ROOT, (), [], ())]
        self.leaves: dict[int, int] = {}  # the codes of arrays in keys, by their id
        # whether operators run when they are called, from here on; None before the first
        self.at_once: bool | None = None
        self.passed = 0  # of these, those that take tensors: others make what a graph is given
        self.beginning = self.elements = 0  # of these, the first, and how many elements they take
        self.is_small = False  # whether it was known that these are few
        self._error: Exception | None = None
        self._running = threading.RLock()
        self._may_begin = False  # whether it may be a new graph; asked once
        self._is_over = self._is_early = False

    @property
    def operators(self) -> int:
        """Return how many operators were called."""
        return self.log[-1][0].operators + self.passed

    def run(self, is_early: bool = True) -> None:
        """Run what was written down, ``is_early`` for a value; nodes that are asked for raise."""
        forks.refuse()
        with self._running:
            if not self._is_over:
                self.recorder.leave(self)
                if is_early and self.log[-1][0].operators and not self.recorder.is_patient:
                    COUNTS.looked_at()
                self._is_early = is_early
                self._run()
                self._is_over = True
                self.log = self.log[:1]
        if self._error is not None:
            raise self._error
        if policies.waits_for_checks():
            flags.raise_failed()

    def _run(self) -> None:
        state, nodes, numbers, arrays = self.written_down()
        if not self.operators:
            return
        COUNTS.add(operators=self.operators, graphs=1)
        if self.passed:
            is_small = self.elements < ELEMENTS_OF_A_SMALL_OPERATOR * self.passed
            self.recorder.listener.passed(self.beginning, is_small)
        if live(nodes):
            self._compute(state, nodes, numbers, arrays)
        path.cut()

    def written_down(self) -> tuple[State, list[Node], list[Any], list[Any]]:
        """Return the graph so far: its state, the nodes of its results, its numbers and arrays."""
        log = list(self.log)  # another thread may be writing down what comes too late
        while len(log) > 1 and log[-1][0].step is None:  # given to an operator that has not come
            log.pop()
        states, *columns = zip(*log, strict=True)
        nodes, numbers, arrays = (list(chain.from_iterable(column)) for column in columns)
        return states[-1], nodes, numbers, arrays

    def _compute(self, state: State, nodes: list, numbers: list, arrays: list) -> None:
        given = *by_kind(numbers), arrays
        listener = SILENT if self.at_once else self.recorder.listener  # which hears of the rest
        if absent.is_chosen():
            self._stand_in(state, nodes, given)
            return
        listener.before(state, numbers, arrays)
        try:
            if sharding.Use.begun:
                arrays[:] = sharding.on_one_mesh(arrays) or arrays
            if (program := self._program(state, nodes, given)) is not None:
                path.note_run(program, state)
                signals.undisturbed(self._launch, program, nodes, given)
            else:
                wanted = live(nodes)
                _settle(nodes, wanted, run_one_by_one(state.steps(), given, wanted))
            listener.after(state, nodes, program)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, ValueError) and not errors.is_deleted(error):
                raise
            self._error = errors.translate(error, f"in {state.operators} recorded operators")

    def _program(self, state: State, nodes: list, given: Numbered) -> Program | None:
        """Return the program of a graph; None if its operators are to run one by one.

        It is compiled on another thread, where operators can run one by one in the run before the
        first that takes it. That run is fixed beforehand, so that results are no matter of a
        thread's speed.
        """
        if self.at_once:  # it ends where a new graph begins
            return None
        state.runs += 1
        listener = self.recorder.listener
        if state.runs == 1 and compile_nothing() and not self.begins():
            state.runs = 0
            return None
        # where values are looked at Python decides by them, and may never come this way again
        if not state.programs and state.runs < max(self.first_compiled() - 1, 1 + self._is_early):
            return None
        program, is_new = program_for(state, nodes, given, not self.recorder.is_patient, listener)
        if is_new:
            report = functools.partial(COUNTS.compiled, explain(state, program))
            program.compile(state.runs + (self.first_compiled() > 1), given, report)
            path.keep(state, program)
        if state.runs < program.from_run:
            return None
        if not is_new:
            COUNTS.add(hits=1)
            listener.hits += 1
        program.wait()
        return program

    def begins(self) -> bool:
        """Return whether to record a graph that is new, for which operators may be traced."""
        self._may_begin = self._may_begin or self.recorder.listener.begins(self._is_early)
        return self._may_begin

    def first_compiled(self) -> int:
        """Return the first run of a graph that is compiled: 1 where single operators would be."""
        if self.recorder.listener.needs_program:
            return 1
        quick = self.recorder.is_patient or compile_nothing()
        return config.get("compiled_from_run") if quick else 1

    def _stand_in(self, state: State, nodes: list, given: Numbered) -> None:
        """Lower a graph for chips that are elsewhere, and give its live results a form."""
        program, is_new = program_for(state, nodes, given, listener=self.recorder.listener)
        if is_new:
            path.keep(state, program)
        wanted = _wanted(program, nodes)
        if OPEN and not OPEN[-1].is_over:
            OPEN[-1].run(self.recorder.listener.name, program, state, given, wanted)
        forms = [(nodes[at].shape, nodes[at].dtype) for at in program.outputs]
        pairs = zip(forms, wanted, strict=True)
        stand_ins = [absent.Absent(*form, place) for form, place in pairs]
        _settle(nodes, program.outputs, stand_ins)

    def lowered(self) -> Any:
        """Return what JAX lowers for what is written down, in place of running it."""
        state, nodes, numbers, arrays = self.written_down()
        given = *by_kind(numbers), arrays
        program, _ = program_for(state, nodes, given)
        return program.lower(given, _wanted(program, nodes))

    def _launch(self, program: Program, nodes: list, given: Numbered) -> None:
        """Run a program, which may write over its arrays: nothing may come between."""
        wanted = _wanted(program, nodes) if sharding.Use.begun else ()
        floats, integers, arrays = given
        if program.from_run:
            self.log = self.log[:1]  # which holds the arrays, too
            program.own(arrays)
        _settle(nodes, program.outputs, program(floats, integers, arrays, wanted))
        self._is_over = True


def by_kind(numbers: list[Any]) -> tuple[list[float], list[int]]:
    """Return the floats among the numbers of a graph, and the others, as its program takes them."""
    floats = [number for number in numbers if isinstance(number, float)]
    return floats, [int(number) for number in numbers if not isinstance(number, float)]


def _wanted(program: Program, nodes: list[Any]) -> tuple:
    """Return the shardings that a program's results are to have, None where XLA decides."""
    return tuple(sharding.wanted_by(nodes[at]) for at in program.outputs)


def _settle(nodes: list[Any], places: Sequence[int], arrays: Sequence[Any]) -> None:
    """Give the nodes at these places what was computed for them."""
    for at, array in zip(places, arrays, strict=True):
        node = nodes[at]
        node.array = sharding.settled(node, array) if sharding.Use.begun else array
        node.recording = None


class Recorder:
    """Writes operators down on one thread; kernels find it as ``ACTIVE.recorder``."""

    def __init__(self, most: int = 0, least: int = 0, yields: bool = False):
        """Make a recorder, which may cut recordings by itself.

        Args:
          most: after how many operators a recording is run in any case; 0: never.
          least: from how many operators on it is run where one comes that a recording has begun
            with before, so that a loop is cut at the same places each time it comes around; 0:
            never. Graphs are then compiled when they come again, not before.
          yields: whether what is recorded within blocks has recordings of its own.
        """
        self.lock = threading.RLock()
        self.most, self.least, self.is_patient = most, least, least > 0
        self.yields = yields
        self._beginnings: set[int] = set()
        self.listener = SILENT  # hears of each graph
        self.recording = Recording(self)

    def leave(self, recording: Recording) -> None:
        """Write nothing more to a recording, which is about to be run."""
        with self.lock:
            if self.recording is recording:
                self.recording = Recording(self)

    def flush(self) -> None:
        """Run what is written down."""
        self.recording.run(is_early=False)

    def _cut(self) -> None:
        """Run a recording that has become very long without a ``sync``."""
        if not (_warned or self.is_patient):
            line = tracers.user_line()
            _warned.append(line)
            warnings.warn(
                f"{self.most} operators were recorded without a torch_jax.sync(), and are run as "
                f"they are, at {line}. Call torch_jax.sync() at the end of each step, or iterate "
                "over torch_jax.DeviceLoader(loader): else the program is cut at another operator "
                "each time, and each piece is compiled. TORCH_JAX_LAZY_OPERATORS sets the number.",
                stacklevel=2,
            )
        self.flush()

    def passes(self, op: Any, args: tuple, kwargs: dict[str, Any], is_new: bool = False) -> bool:
        """Return whether an operator runs at once, as all behind it then do; remember what does.

        ``is_new``: it has no entry, and may be the first of these.
        """
        if self.recording.is_small:
            return True
        call = _call(op, args, kwargs)
        if self.least:
            if self.recording.operators >= self.least and call in self._beginnings:
                self.flush()
            if not self.recording.operators:
                self._beginnings.add(call)
        recording = self.recording
        if recording.at_once:
            self._remember(call, args)
            return True
        # known operators are asked for at the beginning, before operands become arrays
        is_first, recording.at_once = recording.at_once is None, False
        if not is_new and (not is_first or op.namespace != "aten" or call not in MET):
            return False
        return self._begins_at_once(call, args, is_traced=not is_new and MET[call])

    def _begins_at_once(self, call: int, args: tuple, is_traced: bool) -> bool:
        """Return whether operators run at once from one on that is new, or begins few."""
        is_whole = self.listener.takes_checks or absent.is_chosen()
        if self.recording.first_compiled() <= 2 or not compile_nothing() or is_whole:
            return False
        is_small = self.listener.begins_small(call)
        if call in MET and not is_small and (is_traced or self.recording.begins()):
            MET[call] = True
            return False
        self.recording.at_once = True
        self.flush()
        recording = self.recording
        recording.at_once, recording.beginning, recording.is_small = True, call, is_small
        self._remember(call, args)
        return True

    def _remember(self, call: int, args: tuple) -> None:
        """Remember an operator that runs at once."""
        if len(MET) >= PLACES_REMEMBERED:
            MET.clear()
        MET.setdefault(call, False)
        recording, sizes = self.recording, [tensor.numel() for tensor in tensors_in(args)]
        if sizes:
            recording.passed += 1
            recording.elements += max(sizes)
        if recording.operators == self.most > 0:
            self._cut()

    def look(self) -> None:
        """Hear that a value is looked at: operators that run at once end there, as others do."""
        if self.recording.at_once:
            self.flush()

    def record(self, op: Any, entry: Any, memories: list[Any] | tuple) -> Sequence[Any]:
        """Write an operator down and check its indices; return nodes, or arrays of numbers."""
        if (maker := entry.maker) is None:
            maker = entry.maker = _maker(entry, memories)
        if maker and not any(type(one) is GivenNumber for one in maker.of(memories)):
            return make(entry, maker, memories)
        recording = self.recording
        leaves = recording.leaves
        key: list[Any] = [entry.serial]
        numbers: list[Any] = []
        for memory in memories:
            kind = type(memory)
            if kind is Node:
                if memory.recording is recording:
                    key.append(memory.index)
                    continue
                memory = memory.get()
                kind = type(memory)
            if (code := leaves.get(id(memory))) is not None:
                key.append(code)
            elif kind in ARRAYS:
                key.append(_give(recording, memory))
            elif kind in NUMBERS:
                key.append(NUMBERS[kind])
                numbers.append(memory)
            else:
                key.append(_other(recording, entry, memory, numbers))
        step = tuple(key)
        state = recording.log[-1][0]
        if (child := state.after.get(step)) is None:
            if _have_changed(step, state):
                _moving.add(entry.serial)
                return self.record(op, entry, memories)
            child = _step(op, entry, memories, state, step)
        check = child.check
        if check is not None and policies.waits_for_checks(entry.check[1]):
            holds = None
            if compile_nothing():
                arrays = list(chain.from_iterable(arrays for *_, arrays in recording.log))
                ours = check.integers(numbers, recording.log)
                holds = self.listener.proves(check, arrays, ours)
            if holds:
                check = None
            elif holds is False or not self.listener.takes_checks:
                _check(entry, check.part, memories)
                check = None
        # A list beside the log's tuple: so they count as reachable before tensors hold them, if
        # another thread runs the recording by then.
        nodes = [
            Node(aval, shape, dtype, recording, state.nodes + i)
            for i, (aval, shape, dtype) in enumerate(child.step.body.outs)
        ]
        with self.lock:
            if self.recording is not recording:  # it was run, by the check or by another thread
                return self.record(op, entry, memories)
            recording.log.append((child, tuple(nodes), numbers, ()))
        if child.operators == self.most:
            self._cut()
        if check is not None:
            (flag,) = self.record(op, check.part, check.part.of(memories))
            self.check_later(flag, *entry.check)
        return nodes

    def check_later(self, flag: Any, message: str, kind: type[Exception]) -> None:
        """Raise ``kind(message)`` if the flag is false, by the listener or at the next wait."""
        check = self.listener.check if self.listener.takes_checks else flags.come_later
        check(flag, message, kind)


def _call(op: Any, args: tuple, kwargs: dict[str, Any]) -> int:
    """Return the hash of an operator and the forms of its arguments."""
    return hash((op, *map(_form, args), *map(_form, kwargs.values())))


def _form(value: Any) -> Any:
    """Return the form of an argument: it knows shapes and dtypes, and no memory or number."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return tuple(map(_form, value)) if isinstance(value, list | tuple) else type(value)


def _check(entry: Any, check: Any, memories: Any) -> None:
    """Raise where an index is out of range, as the operator does that runs at once."""
    given = list(map(operand, check.of(memories)))
    with x64(), at_once():
        (fine,) = check.run.call(*given)
    transfer.require(fine, *entry.check)


def _maker(entry: Any, memories: Any) -> Any:
    """Return the part that makes an entry's results of numbers alone; False if there is none.

    A new tensor of zeros is an array that the graph is given. So an optimizer's first step, which
    makes its state, is the graph of all later steps.
    """
    maker = body_of(entry, memories).maker
    # decided by the operands: a tensor of one truth value has the form of Python's
    is_made = maker is not None and all(type(one) in NUMBERS for one in maker.of(memories))
    return maker if is_made else False


def _give(recording: Recording, array: Any) -> int:
    """Give a recording an array; return its code in keys."""
    state = recording.log[-1][0]
    form = array.shape, array.dtype, getattr(array, "weak_type", False)
    if (child := state.after.get(form)) is None:
        child = state.after[form] = State(state, None, given=True)
    recording.log.append((child, (), [], (array,)))
    # by the state, not by the leaves: an interrupt may have come between these two lines before
    code = recording.leaves[id(array)] = LEAF - state.given
    return code


def _other(recording: Recording, entry: Any, memory: Any, numbers: list[Any]) -> Any:
    """Return the code of an operand that is neither an array of JAX's nor a number."""
    kind = type(memory)
    if kind is Place or kind is Integers:
        values = memory.values
        if entry.serial in _moving:
            numbers += values
            return MOVING
        return values
    if kind is np.ndarray and memory.dtype == _UINT32 and memory.shape == (4,):
        numbers += memory.tolist()
        return WORDS
    if isinstance(memory, np.ndarray | np.generic):
        return _give(recording, memory)
    raise NotRecordable


def _have_changed(key: tuple, state: State) -> bool:
    """Return whether an operator, new at this state, had other integers in earlier recordings.

    Asked of the operators' numbers, not of their states: behind the first operator whose integers
    have changed no state is known.
    """
    if not (integers := tuple(one for one in key if type(one) is tuple)):
        return False
    if len(_integers_at) >= PLACES_REMEMBERED:
        _integers_at.clear()
    return _integers_at.setdefault((key[0], state.operators), integers) != integers


def _step(op: Any, entry: Any, memories: Any, state: State, key: tuple) -> State:
    """Make the state that an operator leads to for the first time."""
    body, sources = body_of(entry, memories), tuple(map(source_of, key[1:], memories))
    child = State(state, Step(entry, sources, body, op.name(), tracers.user_line()))
    if body.check is not None:
        check = bounds.Check(state, body.check, sources)
        child.check = None if check.holds_for({}) else check
    state.after[key] = child
    return child
