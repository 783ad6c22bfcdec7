"""Programs of recorded graphs: which results a run needs, which arrays it may write over."""

from __future__ import annotations

import functools
import gc
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import jax
import numpy as np

from torch_jax import target
from torch_jax._private import jax_core
from torch_jax._private.jaxprs import called_once, core
from torch_jax.compiler import donation, fusion, options
from torch_jax.compiler.worker import WORKER
from torch_jax.core import compilations, crossed, heap, progress
from torch_jax.core.absent import Absent
from torch_jax.core.node import Node
from torch_jax.core.numbers import GivenNumber
from torch_jax.core.x64 import x64
from torch_jax.memory import sharding
from torch_jax.recorded.bodies import beginning_at
from torch_jax.recorded.one_by_one import Operands, at_once, compile_nothing
from torch_jax.recorded.path import Given, Number, Result, State, Step

ARRAYS = frozenset((jax_core.array_type(), Absent))


class Listener:
    """Hear of the graphs that a recorder runs, and say how their programs are made.

    This one takes no notice.
    """

    # whether checks of indices, where not proved, are recorded with the rest, and raised for by the
    # listener; else each is run at once
    takes_checks = False
    needs_program = False  # whether a graph is to be compiled when it is run for the first time
    name = ""  # what users call the code that is recorded
    where = "a function under torch_jax.jit"  # for errors
    is_differentiable = True  # whether gradients may be left in tensors that the code finds
    options: dict[str, Any] = {}  # of XLA's compiler, beside those of all programs
    hits = 0  # the runs that found a program

    def __init__(self, name: str = "", takes_checks: bool = False) -> None:
        self.name, self.takes_checks = name, takes_checks

    def before(self, state: State, numbers: list[Any], arrays: list[Any]) -> None:
        """Hear of a graph, and of the numbers and arrays that it is given, before it is run."""

    def after(self, state: State, nodes: list[Node], program: Program | None) -> None:
        """Hear of its results, and of the program; None where its operators ran one by one."""

    def passed(self, beginning: int, is_small: bool) -> None:
        """Hear of operators that have run at once, of the first, and whether elements were few."""

    def begins_small(self, call: int) -> bool:
        """Return whether an operator begins such as are to run at once each time they come."""
        return False

    def check(self, flag: Node, message: str, kind: type[Exception]) -> None:
        """Hear of a truth value of the graph, and of the error to raise where it is false."""

    def proves(self, check: Any, arrays: list[Any], integers: Any) -> bool | None:
        """Return whether a check of indices holds for the arrays so far; None where it may."""
        return check.holds(arrays, integers)

    def begins(self, is_early: bool = False) -> bool:
        """Return whether to record one more graph, which ends early if a value is looked at."""
        return True

    def may_take(self, arrays: list[Any], dead: frozenset[int]) -> frozenset[int]:
        """Return which arrays a program may write over, ``dead`` those without other holders."""
        return dead


SILENT = Listener()

Numbered = tuple[Any, Any, list[Any]]  # the floats, the integers and the arrays of a run


class Program:
    """A graph compiled for some of its results."""

    from_run = 0  # the run of the graph from which on it is used

    def __init__(
        self,
        state: State,
        outputs: tuple[int, ...],
        donated: tuple[int, ...],
        arrays: Sequence[Any],
        floats: Sequence[float] | None = None,
        given_options: dict[str, Any] = SILENT.options,
    ):
        """Take a graph, its wanted results, and arrays like those that it is given.

        Of equal ``floats`` of one operand it takes one; of others, that differ, it is no program.
        """
        self.given_options = given_options  # of XLA's compiler, beside those of all programs
        steps, forms, heirs = state.steps(), _forms(state), _heirs(state)
        pairs = [(_form(arrays[at]), heirs.get(at)) for at in donated]
        outputs = tuple(donation.order(outputs, forms.__getitem__, pairs))
        self.outputs = outputs  # the numbers of the results that it gives
        self.donated = donated  # which of the arrays it may write its results over
        self.floats = Floats(steps, floats)
        self._doubles = frozenset(map(self.floats.places.__getitem__, _doubles(steps)))
        self._scalars = [at for at in self.floats.shared if at not in self._doubles]
        self._kept = [_Kept() for _ in range(3 + len(self._scalars))]  # of vectors, and of these
        self._compiled: Any = None
        self._made = compilations.NOTHING  # by the thread that compiles
        jitted: Any = functools.partial(
            jax.jit,
            fusion.bounded(_function(steps, outputs, self)),
            donate_argnums=tuple(at + 3 + len(self._scalars) for at in donated),
            compiler_options=options.whole() | given_options,
            keep_unused=True,
        )
        # by the shardings that results are to have, if any is to have one
        self._giving = functools.cache(
            lambda wanted: jitted(out_shardings=list(wanted)) if wanted else jitted()
        )
        self._call: Any = self._giving(())

    @functools.cached_property
    def places(self) -> dict[int, int]:
        """Return the places of results among its outputs, by their numbers."""
        return {node: at for at, node in enumerate(self.outputs)}

    def compile(self, from_run: int, given: Numbered, report: Callable[[float], None]) -> None:
        """Compile on another thread, where ``report`` is called with the seconds that it took."""
        self.from_run = from_run
        forms = self._forms(given)

        def compile_() -> None:
            start, before = time.perf_counter(), compilations.here()
            lowered = self._call.lower(*forms)
            self._call = lowered.compile(options.of_lowered(lowered) | self.given_options)
            self._made = compilations.here().minus(before)
            report(time.perf_counter() - start)

        self._compiled = WORKER.submit(compile_, ())

    def wait(self) -> None:
        """Wait until it has been compiled."""
        if self._compiled is not None:
            with progress.program("a recorded graph"):
                self._compiled.wait()
                compilations.take_over(self._made)
            self._compiled = None

    def _forms(self, given: Numbered) -> list[Any]:
        """Return the forms of what the program is given: its numbers, and arrays."""
        arrays = self._as_arrays(*given)
        return [
            jax.ShapeDtypeStruct(
                one.shape, one.dtype, weak_type=getattr(one, "weak_type", False), sharding=where
            )
            for one, where in zip(arrays, sharding.on_targets(arrays), strict=True)
        ]

    def _as_arrays(self, floats: Any, integers: Any, arrays: list[Any]) -> tuple[Any, ...]:
        """Return what the program is given, all numbers on the host."""
        return *self._numbers(floats, integers), *arrays

    def _numbers(self, floats: Any, integers: Any) -> tuple[Any, ...]:
        """Return the numbers of a run: floats in two widths where both are asked for, integers.

        Those that operators share come beside the vectors: in front of a number that is an input,
        as in front of a constant, a GPU's compiler makes one kernel of a norm or a softmax.
        """
        doubles: Any = self.floats.taken(floats)
        with np.errstate(over="ignore"):  # what is too large for float32 is infinite
            singles = doubles.astype(np.float32)
        if not self._doubles:
            doubles = _NO_DOUBLES
        return singles, doubles, np.asarray(integers, np.int64), *singles[self._scalars]

    def own(self, arrays: list[Any]) -> None:
        """Copy the arrays that are written over, one after the other, into memory of XLA's own.

        XLA writes over no memory of PyTorch's, which earlier runs have made: it would copy all of
        it at once, and need twice the memory of a training step's state.
        """
        self.from_run = 0
        if compile_nothing():
            for at in self.donated:
                arrays[at] = donation.copy_of(arrays[at])

    def lower(self, given: Numbered, wanted: tuple = ()) -> Any:
        """Return what JAX lowers for numbers and arrays like these, on the chips of the target."""
        forms = self._forms(given)
        with x64(), jax.default_device(target.devices()[0]):
            wanted = tuple(map(sharding.on_target, wanted)) if any(wanted) else ()
            return self._giving(wanted).lower(*forms)

    def __call__(
        self, floats: list[float], integers: list[int], arrays: list[Any], wanted: tuple = ()
    ) -> list[Any]:
        """Run over numbers and arrays; ``wanted`` are results' shardings, None for XLA's choice."""
        with x64(), at_once():
            if not sharding.Use.begun:
                numbers = map(_Kept.of, self._kept, self._numbers(floats, integers))
                results = jax_core.native(self._call)(*numbers, *arrays)
                heap.trim()
                return results
            given = self._as_arrays(floats, integers, arrays)
            with donation.without_warnings():  # arrays may be sharded in other ways at each call
                return self._giving(wanted if any(wanted) else ())(*given)


class Floats:
    """The places of a graph's floats among those that its program takes: equal ones it takes once.

    Layers of one kind give an operator the same number, such as the epsilon of a norm. As inputs of
    their own these would make the kernels of each layer differ, and XLA would compile each: a
    training step of GPT-2 takes a GPU's compiler twice as long.
    """

    def __init__(self, steps: Sequence[Step], floats: Sequence[float] | None):
        """Take a graph, and its floats in the run that the program is made for.

        Equal ones of one operand of an operator share a place, but for numbers of optimizers, which
        change while Python does not run. Without ``floats`` each has its own.
        """
        self.is_apart = floats is None
        keys: list[Any] = [(step.entry.serial, at) for step, at in _floats_of(steps)]
        if floats is None:
            keys = list(range(len(keys)))
        else:
            bits = np.array(floats, np.float64).view(np.int64).tolist()
            for at, number in enumerate(floats):
                keys[at] = at if type(number) is GivenNumber else (*keys[at], bits[at])
        place_of: dict[Any, int] = {}
        self.places = [place_of.setdefault(key, len(place_of)) for key in keys]
        _, self._first, times = np.unique(self.places, return_index=True, return_counts=True)
        self._sharing = [at for at, place in enumerate(self.places) if times[place] > 1]
        self.shared = np.flatnonzero(times > 1).tolist()

    def taken(self, floats: Any) -> Any:
        """Return the floats that the program takes, as a vector of float64."""
        every = np.asarray(floats, np.float64)
        return every[self._first] if self._sharing else every

    def fit(self, floats: Sequence[float]) -> bool:
        """Return whether those that share a place are equal to the bit, and of no optimizer."""
        if not self._sharing:
            return True
        every = np.asarray(floats, np.float64)
        are_equal = every[self._first][self.places].tobytes() == every.tobytes()
        return are_equal and not any(type(floats[at]) is GivenNumber for at in self._sharing)


class _Kept:
    """Numbers that are on the device while they stay the same, so that no call copies them."""

    _known: tuple[bytes, Any] = b"", None  # in one: threads may run one program

    def of(self, vector: Any) -> Any:
        """Return a vector or a number of the host, or the same numbers on the device."""
        bits = vector.tobytes()
        known, array = self._known
        if bits != known:
            self._known = bits, None
            return vector
        if array is None:
            array = jax.device_put(vector)
            self._known = bits, array
        return array


_NO_DOUBLES = np.empty(0, np.float32)  # of float32: TPUs have no float64


def _doubles(steps: Sequence[Step]) -> frozenset[int]:
    """Return which of the floats that a graph is given are not only used as float32."""
    singles = functools.cache(narrow)
    floats = enumerate(_floats_of(steps))
    return frozenset(n for n, (step, at) in floats if at not in singles(step.body.jaxpr.jaxpr))


def _floats_of(steps: Sequence[Step]) -> Iterator[tuple[Step, int]]:
    """Yield for each float of a graph the operator that takes it, and as which operand."""
    for step in steps:
        for at, source in enumerate(step.sources):
            if isinstance(source, Number) and source.kind is float:
                yield step, at


def narrow(jaxpr: Any) -> frozenset[int]:
    """Return which inputs of a jaxpr are numbers of float64 of which only a float32 is used.

    The host converts those: TPUs have no float64, and GPUs few units for it.

    >>> import jax, jax.numpy as jnp
    >>> with jax.enable_x64():
    ...     number = jax.ShapeDtypeStruct((), "float64", weak_type=True)
    ...     array = jnp.ones(2, "float32")
    ...     made = jax.make_jaxpr(lambda x, a, b: (x * a, b + 1))(array, number, number)
    >>> sorted(narrow(made.jaxpr))
    [1]
    """
    wide = set(map(id, jaxpr.outvars))
    for eqn in jaxpr.eqns:
        is_conversion = eqn.primitive.name == "convert_element_type"
        if is_conversion and eqn.params["new_dtype"] == np.float32:
            continue
        inner = called_once(eqn)
        singles = narrow(inner.jaxpr) if inner is not None else ()
        wide.update(id(one) for at, one in enumerate(eqn.invars) if at not in singles)
    return frozenset(
        at
        for at, one in enumerate(jaxpr.invars)
        if (one.aval.shape, one.aval.dtype) == ((), np.float64) and id(one) not in wide
    )


_references = functools.partial(map, sys.getrefcount)
_log = [(object(),)]
_ALONE = next(_references(list(chain.from_iterable(_log))))  # of an object that only a log holds


def live(nodes: list[Any]) -> tuple[int, ...]:
    """Return the results that code outside of the recording can reach."""
    return tuple(at for at, count in enumerate(_references(nodes)) if count > _ALONE)


def _dead(arrays: list[Any]) -> frozenset[int]:
    """Return the arrays that only the recording can reach."""
    counts = enumerate(_references(arrays))
    dead = frozenset(at for at, n in counts if n <= _ALONE and type(arrays[at]) in ARRAYS)
    return frozenset(at for at in dead if not crossed.is_marked(arrays[at])) if dead else dead


# Runs of a graph before which it is asked whether its program could write over more arrays.
_LOOKED_AT = frozenset((4, 16, 64, 256))


def program_for(
    state: State,
    nodes: list[Any],
    given: Numbered,
    may_collect: bool = False,
    listener: Listener = SILENT,
) -> tuple[Program, bool]:
    """Return a program of a graph that gives all reachable results, and whether it is a new one.

    Garbage can keep results alive, so a graph has at most two programs: one for the first set of
    live results, and one for the union of all so far. If ``may_collect``, garbage is collected once
    before the second is made, which a later run that can write over more arrays gets, too.
    """
    jax_core.free_seen()  # what PyTorch has seen counts as held until then
    floats, _, arrays = given
    alike = [one for one in state.programs if one.given_options == listener.options]
    fitting = [one for one in alike if one.floats.fit(floats)]
    make = functools.partial(Program, state, arrays=arrays, given_options=listener.options)
    outputs, dead = live(nodes), listener.may_take(arrays, _dead(arrays))
    found = _serving(fitting, outputs, dead)
    if found is None and may_collect and state.programs and state.may_collect and gc.isenabled():
        state.may_collect = False
        gc.collect()
        found = _serving(fitting, live(nodes), listener.may_take(arrays, _dead(arrays)))
    if found is not None:
        if may_collect and state.runs in _LOOKED_AT and len(state.programs) == 1:
            donated = _donatable(state, found.outputs, dead, arrays)
            if len(donated) > len(found.donated):
                given_floats = None if found.floats.is_apart else floats
                return make(found.outputs, donated, floats=given_floats), True
        return found, False
    # what was garbage is needed, too: the next time it may be there again
    outputs = tuple(sorted({*outputs, *chain.from_iterable(one.outputs for one in state.programs)}))
    donatable = dead.intersection(*(one.donated for one in state.programs))
    donated = _donatable(state, outputs, donatable, arrays)
    are_equal = all(one.floats.fit(floats) and not one.floats.is_apart for one in state.programs)
    return make(outputs, donated, floats=floats if are_equal else None), True


def _serving(programs: list, wanted: tuple[int, ...], dead: frozenset[int]) -> Program | None:
    """Return the program that gives least beside the wanted results, and loses dead arrays only."""
    given = (one for one in programs if one.places.keys() >= {*wanted})
    fitting = (one for one in given if dead.issuperset(one.donated))
    return min(fitting, key=lambda one: (len(one.outputs), -len(one.donated)), default=None)


def _donatable(
    state: State, outputs: Sequence[int], dead: frozenset[int], arrays: Sequence[Any]
) -> tuple[int, ...]:
    """Return the dead arrays that have the form of a result, one for each result."""
    forms = _forms(state)
    free = Counter(forms[at] for at in outputs)
    found = []
    for at in sorted(dead):
        form = _form(arrays[at])
        if free[form] > 0:
            free[form] -= 1
            found.append(at)
    return tuple(found)


def _form(array: Any) -> tuple[tuple[int, ...], Any]:
    return tuple(array.shape), array.dtype


def _forms(state: State) -> list[Any]:
    """Return shape and dtype of every result."""
    return [(shape, dtype) for step in state.steps() for _, shape, dtype in step.body.outs]


def _heirs(state: State) -> dict[int, int]:
    """Return the result that replaces each array: what is written in place is given last."""
    first: dict[int, int] = {}  # the array that the first write of a chain has written over
    heirs: dict[int, int] = {}
    count = 0
    for step in state.steps():
        count += len(step.body.outs)
        slots = step.entry.slots
        for at, slot in enumerate(slots, count - len(slots)):
            match step.sources[slot]:
                case Given(array):
                    first[at] = array
                case Result(before) if before in first:
                    first[at] = first[before]
            if at in first:
                heirs[first[at]] = at
    return heirs


def _function(
    steps: Sequence[Step], outputs: Sequence[int], program: Program
) -> Callable[..., list[Any]]:
    """Return the function that computes a graph, of what its program is given."""
    places, of_doubles, scalars = program.floats.places, program._doubles, program._scalars

    def torch_jax_recorded(singles: Any, doubles: Any, integers: Any, *given: Any) -> list[Any]:
        count = len(scalars)
        shared = dict(zip(scalars, given[:count], strict=True))

        def number(at: int) -> Any:
            if at in of_doubles:
                return doubles[at]
            return (shared[at] if at in shared else singles[at]).astype(np.float64)

        floats = list(map(number, range(len(singles))))
        operands = Operands([floats[place] for place in places], integers, given[count:])
        for step in steps:
            body = core.jaxpr_as_fun(jax_core.as_if_at(step.line, beginning_at(step)))
            operands.results += body(*operands.of(step.sources))
        return [operands.results[at] for at in outputs]

    # profiles find programs by their names; equal programs of one name are one on disk
    operators = repr([(step.name, *(shape for _, shape, _ in step.body.outs)) for step in steps])
    torch_jax_recorded.__name__ += f"_{zlib.crc32(operators.encode()):08x}"
    return torch_jax_recorded
