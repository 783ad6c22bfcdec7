"""Recording: operators are written down when they are called, and run when somebody looks.

Python runs at every call, so nothing that it reads can be stale. The kernels hand their compiled
entries and the memories behind their tensors to the recorder of the thread instead of running them,
and get nodes (:class:`torch_jax.core.node.Node`) for the arrays to come. A recording is run when
the elements of one of its nodes are asked for, at the end of a block, and when it has grown too
long; whatever nobody can reach by then is not computed.
"""

from __future__ import annotations

import sys
import threading
import time
from itertools import chain
from typing import Any

import numpy as np

from torch_jax._private import jax_core
from torch_jax.core import errors, tracers
from torch_jax.core.node import Integers, Node, NotRecordable
from torch_jax.core.x64 import x64
from torch_jax.memory import transfer
from torch_jax.memory.windows import Place, operand, operands
from torch_jax.recorded import bounds, metrics
from torch_jax.recorded.bodies import body_of
from torch_jax.recorded.path import (
    BOOL,
    FLOAT,
    INT,
    LEAF,
    MOVING,
    WORDS,
    Constant,
    Given,
    Moving,
    Number,
    Result,
    State,
    Step,
    Words,
)
from torch_jax.recorded.program import at_once, program_for

_NUMBERS = {float: FLOAT, int: INT, bool: BOOL}
_ARRAY = jax_core.array_type()
_UINT32 = np.dtype(np.uint32)


def _references(held: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, held))


def _alone_in_log() -> int:
    """What :func:`_references` counts for what only a log holds."""
    log: list[tuple] = [(ROOT, (), [], (object(),))]
    return _references(list(chain.from_iterable(arrays for *_, arrays in log)))[0]


ROOT = State(None, None)
_ALONE = _alone_in_log()
# Entries whose integers have differed where all else was the same: inputs from then on.
_moving: set[int] = set()
_seen_once: set[tuple] = set()


class Recording:
    """A sequence of operators that is being written down, or has been run.

    Attributes:
      log: what was written down, each by one ``append``: the state that the tree of paths is in,
        the nodes of the results, and the Python numbers and the arrays that this run is given.
      leaves: how arrays stand in keys, by their id.
    """

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.log: list[tuple[State, tuple, list, tuple]] = [(ROOT, (), [], ())]
        self.leaves: dict[int, int] = {}
        self._error: Exception | None = None
        self._running = threading.RLock()
        self._is_over = False

    def run(self) -> None:
        """Run what was written down; an error of XLA's is raised to whoever asks for a node."""
        with self._running:
            if not self._is_over:
                self.recorder.leave(self)
                self._run()
                self._is_over = True
                self.log = self.log[:1]
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        state = self.log[-1][0]
        if not state.operators:
            return
        nodes = list(chain.from_iterable(nodes for _, nodes, _, _ in self.log))
        numbers = list(chain.from_iterable(numbers for _, _, numbers, _ in self.log))
        live = tuple(at for at, count in enumerate(_references(nodes)) if count > _ALONE)
        metrics.COUNTS.ran(state.operators)
        if live:
            self._compute(state, nodes, numbers, live)

    def _compute(self, state: State, nodes: list, numbers: list, live: tuple[int, ...]) -> None:
        arrays = list(chain.from_iterable(arrays for *_, arrays in self.log))
        floats = [number for number in numbers if type(number) is float]
        integers = [int(number) for number in numbers if type(number) is not float]
        program, is_new = program_for(state, live, _dead(arrays), lambda at: _form(arrays[at]))
        start = time.perf_counter()
        try:
            results = program(floats, integers, arrays)
        except RuntimeError as error:
            self._error = errors.translate(error, f"in {state.operators} recorded operators")
            return
        if is_new:
            metrics.compiled(state, time.perf_counter() - start)
        for at, array in zip(program.outputs, results, strict=True):
            node = nodes[at]
            node.array, node.recording = array, None


def _dead(arrays: list[Any]) -> frozenset[int]:
    """The arrays that nobody but the recording can reach."""
    counts = enumerate(_references(arrays))
    return frozenset(at for at, n in counts if n <= _ALONE and type(arrays[at]) is _ARRAY)


def _form(array: Any) -> tuple[tuple[int, ...], Any]:
    return tuple(array.shape), array.dtype


class Recorder:
    """What writes operators down on one thread; kernels find it as ``ACTIVE.recorder``."""

    def __init__(self, most: int = 0):
        """``most``: after how many operators a recording is run in any case; 0: never."""
        self.lock = threading.RLock()
        self.most = most
        self.recording = Recording(self)

    def leave(self, recording: Recording) -> None:
        """Write nothing more to a recording, which is about to be run."""
        with self.lock:
            if self.recording is recording:
                self.recording = Recording(self)

    def flush(self) -> None:
        """Run what is written down."""
        self.recording.run()

    def record(self, op: Any, entry: Any, memories: list[Any] | tuple) -> tuple[Node, ...]:
        """Write an operator down: its entry over memories; nodes of all that it gives.

        Raises what the check of its indices raises, for which these are computed.
        """
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
            code = leaves.get(id(memory))
            if code is not None:
                key.append(code)
            elif kind is _ARRAY:
                key.append(_give(recording, memory))
            elif kind in _NUMBERS:
                key.append(_NUMBERS[kind])
                numbers.append(memory)
            else:
                key.append(_other(recording, entry, memory, numbers))
        step = tuple(key)
        state = recording.log[-1][0]
        child = state.after.get(step)
        if child is None:
            child = _step(op, entry, memories, state, step)
        if child.step.body.check is not None:
            _check(entry, child.step.body, memories)
        at = state.nodes
        nodes = tuple(
            [
                Node(aval, shape, dtype, recording, at + i)
                for i, (aval, shape, dtype) in enumerate(child.outs)
            ]
        )
        with self.lock:
            if self.recording is not recording:  # it was run, by the check or by another thread
                return self.record(op, entry, memories)
            recording.log.append((child, nodes, numbers, ()))
        if child.operators == self.most:
            self.flush()
        return nodes


def _give(recording: Recording, array: Any) -> int:
    """Give a recording an array; returns how it stands in keys."""
    state = recording.log[-1][0]
    form = array.shape, array.dtype, getattr(array, "weak_type", False)
    child = state.after.get(form)
    if child is None:
        child = state.after[form] = State(state, None, given=True)
    recording.log.append((child, (), [], (array,)))
    code = recording.leaves[id(array)] = LEAF - state.given
    return code


def _other(recording: Recording, entry: Any, memory: Any, numbers: list[Any]) -> Any:
    """How an operand stands in a key that is neither an array of JAX's nor a number."""
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
    if kind is complex:
        return kind, repr(memory)
    raise NotRecordable


def _step(op: Any, entry: Any, memories: Any, state: State, key: tuple) -> State:
    """The state that an operator leads to for the first time."""
    try:
        body = body_of(entry, [m if type(m) is Node else operand(m) for m in memories])
    except Exception as error:  # the operator, run at once, raises what it raises eagerly
        raise NotRecordable from error
    sources = tuple(map(_source, key[1:], memories))
    if bounds.is_proven(state, body, sources):
        body = body._replace(check=None)
    child = State(state, Step(entry, sources, body, op.name(), tracers.user_line()), body.outs)
    state.after[key] = child
    return child


def _source(code: Any, memory: Any) -> Any:
    """Where a graph's operand comes from, by how it stands in a key."""
    if type(code) is tuple:
        return Constant(np.asarray(memory.starts) if type(memory) is Place else operand(memory))
    if code >= 0:
        return Result(code)
    if code <= LEAF:
        return Given(LEAF - code)
    if code == WORDS:
        return Words()
    if code == MOVING:
        given = np.asarray(operand(memory))
        return Moving(len(memory.values), given.dtype, given.ndim == 1)
    return Number(type(memory))


def _check(entry: Any, body: Any, memories: Any) -> None:
    """Raise where an index is out of range, as the operator does that runs at once."""
    given = operands([memories[at] for at in body.checked])
    with x64(), at_once():
        (fine,) = body.check(*given)
    if not transfer.on_host(fine):
        message, kind = (*entry.check, IndexError)[:2]
        raise kind(message)
