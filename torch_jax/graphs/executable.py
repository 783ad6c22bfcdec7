"""A functional graph of tensors as one executable, called with tensors.

The executable takes the memories behind its tensors, like an eager operator, and reads views
inside. It writes nothing: new values of its inputs are outputs, new memories that are stored
afterwards. It is made once for each *form*: the geometry of inputs that are not whole, and the
numbers among them; where sizes change, also for each set of sizes.
"""

from __future__ import annotations

import functools
import itertools
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import fx

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.compiler import donation, fusion
from torch_jax.compiler import options as xla_options
from torch_jax.core import absent, errors, policies, precision, progress, tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.log import LOGGER
from torch_jax.core.node import Lent
from torch_jax.core.x64 import x64
from torch_jax.dispatch import call_jax
from torch_jax.environment import overrides
from torch_jax.graphs import runner
from torch_jax.graphs.graph_run import GraphRun, running
from torch_jax.memory import generators, geometry, lending, sharding, storage, transfer
from torch_jax.memory.form import Argument, Form, InputView, NewTensor, Same
from torch_jax.memory.storage import is_jax, is_jax_storage
from torch_jax.recorded.lazy import observed
from torch_jax.recorded.recorder import Listener

_NO_WORDS = np.zeros(4, np.uint32)


class HostCopy(NamedTuple):
    """A tensor on the CPU, copied from an array that comes out of the program."""

    output: int
    form: Form


class _Scalar(NamedTuple):
    """An input without dimensions on the CPU: all of a dtype come and go in one array."""

    dtype: torch.dtype


class _Compiled:
    """The executable of one form, and the origins of its results; filled by its trace."""

    run: Any  # with the options that suit what the trace has shown

    def __init__(self, jitted: Callable[..., Any]):
        self.jitted = jitted
        self.start, self.is_ready = time.perf_counter(), False
        self.results: list[Any] = []
        self.fresh = 0  # how many arrays come out before those that are written
        self.lent: list[int] = []  # inputs whose memories it takes or writes; the latter come last
        self.places: list[int] = []  # where the memories of these are among all
        self.afterwards: list[int] = []  # their later contents, as ``results`` of ``lending.run``
        self.written: list[int] = []
        self.scalars: list[list[int]] = []  # written scalars of the CPU, by dtype
        self.steps = 0
        self.checks: list[tuple[str, type[Exception]]] = []


class Executable:
    """A graph whose call takes a list of tensors and numbers, and gives a list of the same.

    The list is emptied, so that inputs without other holders are freed. The graph is AOTAutograd's,
    without writes but for ``copy_`` to its inputs. If it ``donates`` at all, the program may take
    the memory of ``donated`` and written inputs that have no other holder for its results.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        name: str,
        donated: Sequence[int] = (),
        donates: bool = True,
        options: dict[str, Any] | None = None,
    ):
        self.graph, self.name = graph, name
        self._options = options or {}
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        values = [node.meta.get("val") for node in placeholders]
        wanted = sorted({*donated, *_written(graph, placeholders)}) if donates else []
        self._taken = [at for at in wanted if _is_on(pytorch.DEVICE_TYPE, values[at])]
        # their places among the memories: numbers have none
        self._donated = [sum(map(_has_memory, values[:at])) for at in self._taken]
        self._dynamic = not all(map(_is_static, values))
        self._programs = call_jax.programs_of(graph)
        self._inputs = len(placeholders)
        held = runner.tensors_of(graph)
        self._names = list(held)
        # AOTAutograd compiles under a mode that takes no real tensors
        with pytorch.no_dispatch_modes():
            self._held = [t if is_jax(t) else transfer.to_device(t) for t in held.values()]
        self._compiled: OrderedDict[tuple, _Compiled] = OrderedDict()
        self._is_full = self._is_cut = False

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph."""
        if self._is_cut or absent.is_chosen():
            return self._recorded(args)
        given = [*args, *self._held]
        args.clear()
        words = _NO_WORDS
        while True:
            try:
                key, memories = self._form(given)
                compiled = self._compiled.get(key) or self._first(key, given, memories)
                self._compiled.move_to_end(key)
                if compiled.steps and words is _NO_WORDS:  # once, however often it is tried
                    words = generators.words(*generators.default_generator.advance(compiled.steps))
                launch = self._launch if compiled.is_ready else self._first_launch
                arrays = launch(compiled, words, given, memories)
                return _finish(compiled, given, arrays)
            except tracers.TracedElsewhere:
                _wait(given)
            except (tracers.DataDependentError, errors.OperatorNotFound) as error:
                return self._cut(error, given[: self._inputs])

    def _recorded(self, args: list[Any]) -> list[Any]:
        """Run the graph's operators, and have them recorded."""
        with observed(Listener(self.name)):
            return list(self.graph(*args))

    def _cut(self, error: Exception, args: list[Any]) -> list[Any]:
        """Record a graph from now on: no program has the values that it, or the CPU, looks at."""
        if ACTIVE.tracer is not None:  # which has no values either
            raise error
        self._is_cut = True
        why = str(error).partition("\n")[0]
        LOGGER.warning("%s is recorded at each call, and several programs: %s", self.name, why)
        return self._recorded(args)

    def _form(self, given: list[Any]) -> tuple[tuple, list[Any]]:
        """Return the key by which a call is compiled, and the memories behind its tensors."""
        key: list[Any] = [config.version(), overrides.state(), precision.state()]
        memories: list[Any] = []
        scalars: dict[torch.dtype, list[torch.Tensor]] = {}
        dynamic = self._dynamic
        for value in given:
            try:
                memory = value.untyped_storage().array
            except AttributeError:  # a number, or a tensor on the CPU
                if not isinstance(value, torch.Tensor):
                    key.append(value)
                elif _has_memory(value):
                    memories.append(transfer.array_of(value.detach()))
                    key.append(value.shape if dynamic else None)
                else:
                    scalars.setdefault(value.dtype, []).append(value.detach())
                continue
            memories.append(memory)
            shape = value.shape
            if (
                shape != memory.shape
                or not value.is_contiguous()
                or value.storage_offset()
                or value.is_conj()
                or value.is_neg()
            ):
                key += len(memories), memory.shape, Form.of(value)
            elif dynamic:
                key.append(shape)
        memories += [transfer.array_of(torch.stack(group)) for group in scalars.values()]
        return tuple(key), memories

    def _first(self, key: tuple, given: list[Any], memories: list[Any]) -> _Compiled:
        """Trace a call of a new form, which shows the inputs that it writes."""
        compiled = self._make(given)
        try:
            with x64(), donation.without_warnings():
                lowered = compiled.jitted().trace(_NO_WORDS, *memories).lower()
            chosen = xla_options.of_lowered(lowered) | self._options
            compiled.run = compiled.jitted(compiler_options=chosen)
        except Exception as error:
            self._raise(error, memories)
        self._arrange(compiled, given)
        self._compiled[key] = compiled
        self._forget()
        return compiled

    def _first_launch(self, compiled: _Compiled, words: Any, given: list, memories: list) -> list:
        """Launch a call of a new form, for which XLA compiles."""
        with donation.without_warnings(), progress.program(self.name):
            arrays = self._launch(compiled, words, given, memories)
        compiled.is_ready = True
        what = "specialised" if len(self._compiled) > 1 or self._dynamic else "compiled"
        inputs = errors.describe(given[: self._inputs]).replace(f"@{pytorch.DEVICE_TYPE}:0", "")
        seconds = time.perf_counter() - compiled.start
        LOGGER.info("%s %s for %s in %.2f s", what, self.name, inputs, seconds)
        return arrays

    def _arrange(self, compiled: _Compiled, given: list[Any]) -> None:
        """Sort out the memories that a call lends, and the later contents of their storages."""
        has_memory = [_has_memory(value) for value in given]
        written = [at for at in compiled.written if is_jax(given[at])]
        compiled.lent = [at for at in self._taken if at not in written] + written
        compiled.places = [sum(has_memory[:at]) for at in compiled.lent]
        outputs = compiled.fresh + len(compiled.written)
        outputs += len(compiled.scalars) + len(compiled.checks)
        put = {at: compiled.fresh + n for n, at in enumerate(compiled.written)}
        compiled.afterwards = [
            put.get(at, outputs + place)
            for at, place in zip(compiled.lent, compiled.places, strict=True)
        ]

    def _forget(self) -> None:
        """Drop the forms not called for longest, where there are too many."""
        if len(self._compiled) <= config.get("jit_cache_size"):
            return
        self._compiled.popitem(last=False)
        if not self._is_full:
            self._is_full = True
            warnings.warn(
                f"torch.compile: {self.name} has been compiled for more than "
                f"{config.get('jit_cache_size')} sets of sizes and numbers, and forgets the oldest "
                "from now on. Pad its inputs to fewer sizes, pass numbers that change as tensors, "
                "or keep more with torch_jax.config.set('jit_cache_size', n)",
                stacklevel=2,
            )

    def _launch(self, compiled: _Compiled, words: Any, given: list, memories: list) -> list:
        def arguments() -> tuple:
            donation.copy_shared(memories, self._donated)
            return words, *memories

        places = compiled.places
        storages = [given[at].untyped_storage() for at in compiled.lent]
        forms = [Lent(memories[at].shape, memories[at].dtype) for at in places]
        run, afterwards = compiled.run, compiled.afterwards
        if sharding.Use.begun:
            run = sharding.keeping_outputs(run, memories, places, afterwards)
        try:
            with x64():
                return lending.run(run, arguments, memories, storages, places, forms, afterwards)
        except Exception as error:
            self._raise(error, memories)

    def _raise(self, error: Exception, memories: list[Any]) -> NoReturn:
        """Raise JAX's error in PyTorch's terms."""
        if tracers.is_traced_elsewhere(memories):
            raise tracers.TracedElsewhere from error
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise errors.translate(error, f"in {self.name}") from error
        raise error

    def _make(self, given: list[Any]) -> _Compiled:
        places = itertools.count()
        inputs = [_input(value, places) for value in given]
        count = self._inputs

        def torch_jax_graph(words: Any, *memories: Any) -> list[Any]:
            tensors = _tensors(inputs, memories)
            before = [_memory(tensor) for tensor in tensors]
            run = GraphRun(words)
            held = dict(zip(self._names, tensors[count:], strict=True))
            with running(run):
                results = runner.Runner(self.graph, held).run(*tensors[:count])
            arrays: list[Any] = []
            compiled.results = _specs(results, self._on_host(), tensors, before, arrays)
            compiled.fresh = len(arrays)
            after = [_memory(tensor) for tensor in tensors]
            written = [i for i, a in enumerate(after) if a is not before[i]]
            compiled.written = [i for i in written if type(inputs[i]) is NewTensor]
            compiled.scalars = _by_dtype(inputs, written)
            compiled.steps = run.steps
            compiled.checks = [(message, kind) for _, message, kind in run.checks]
            after = _unless_wrong(written, before, after, [ok for ok, _, _ in run.checks])
            arrays += [after[i] for i in compiled.written]
            arrays += [jnp.stack([after[i] for i in group]) for group in compiled.scalars]
            return [*arrays, *(ok for ok, _, _ in run.checks)]

        donated = [at + 1 for at in self._donated]  # argument 0 is the random key words
        run = fusion.bounded(torch_jax_graph)
        compiled = _Compiled(functools.partial(jax.jit, run, donate_argnums=donated))
        return compiled

    def _on_host(self) -> list[bool]:
        """Return, for each output, whether it is on the CPU in the graph."""
        results: Any = self.graph.graph.output_node().args[0]
        return [isinstance(one, fx.Node) and _is_on_host(one) for one in results]


def _unless_wrong(written: list[int], before: list, after: list, checks: list[Any]) -> list[Any]:
    """Return the written arrays, or the former ones if a check shows that the call will raise."""
    if not checks or not policies.waits_for_checks():
        return after
    is_right = functools.reduce(jnp.logical_and, checks)
    kept = {i: jnp.where(is_right, after[i], before[i]) for i in written}
    return [kept.get(i, array) for i, array in enumerate(after)]


def _is_static(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not any(isinstance(n, torch.SymInt) for n in value.shape)
    return not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _written(graph: fx.GraphModule, placeholders: list[fx.Node]) -> set[int]:
    """Return the places of inputs that a graph writes by ``copy_``."""
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    targets = {node.args[0] for node in copies}
    return {i for i, node in enumerate(placeholders) if node in targets}


def _is_on(device_type: str, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device_type


def _is_on_host(node: fx.Node) -> bool:
    """Return whether a result is on the CPU; states of generators only pass through graphs."""
    if not _is_on("cpu", node.meta.get("val")):
        return False
    source = node.args[0] if node.args else None
    return "run_and_save_rng_state" not in str(getattr(source, "target", ""))


def _input(value: Any, places: Iterator[int]) -> Any:
    """Return the leaf by which a trace makes an input from its memory, which has the next place."""
    if not isinstance(value, torch.Tensor):
        return Same(value)
    if not _has_memory(value):
        return _Scalar(value.dtype)
    if is_jax_storage(value.untyped_storage()):
        return NewTensor.of(next(places), value)
    meta = torch.empty(value.shape, dtype=value.dtype, device="meta")
    return NewTensor(next(places), Form.of(meta), whole=True)


def _tensors(inputs: list[Any], memories: tuple) -> list[Any]:
    """Return the inputs of the graph; ``memories`` end with the arrays of scalars, one a dtype."""
    count = sum(type(spec) is NewTensor for spec in inputs)
    kinds = dict.fromkeys(spec.dtype for spec in inputs if type(spec) is _Scalar)
    scalars = {kind: iter(array) for kind, array in zip(kinds, memories[count:], strict=True)}
    storages: dict[int, Any] = {}

    def tensor(spec: Any) -> Any:
        if isinstance(spec, Same):
            return spec.value
        if isinstance(spec, _Scalar):
            return storage.wrap(next(scalars[spec.dtype]), spec.dtype)
        return spec.build(memories, storages)

    return [tensor(spec) for spec in inputs]


def _by_dtype(inputs: list[Any], written: list[int]) -> list[list[int]]:
    """Return the places of written scalars among the inputs, by dtype."""
    groups: dict[torch.dtype, list[int]] = {}
    for at in written:
        if isinstance(inputs[at], _Scalar):
            groups.setdefault(inputs[at].dtype, []).append(at)
    return list(groups.values())


def _has_memory(value: Any) -> bool:
    """Return whether an input has its own array: numbers and scalars of the CPU have none."""
    return isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.dim() > 0)


def _memory(value: Any) -> Any:
    """Return the memory behind a tensor, None for values without one."""
    storage: Any = value.untyped_storage() if isinstance(value, torch.Tensor) else None
    return getattr(storage, "array", None)


def _specs(
    results: Sequence[Any], on_host: list[bool], tensors: list, before: list, arrays: list
) -> list[Any]:
    """Return the origin of each result; append arrays that must come out to ``arrays``."""
    owner = {id(t.untyped_storage()): i for i, t in enumerate(tensors) if _memory(t) is not None}
    arguments = {id(t): i for i, t in enumerate(tensors) if isinstance(t, torch.Tensor)}
    places: dict[int, int] = {}

    def spec(value: Any, host: bool) -> Any:
        if not isinstance(value, torch.Tensor):
            return Same(value)
        if id(value) in arguments:
            return Argument(arguments[id(value)])
        if value.is_meta:
            return Form.of(value)
        if host:
            arrays.append(transfer.as_array(value))
            return HostCopy(len(arrays) - 1, Form.of(value))
        errors.refuse_sparse(value)
        memory: Any = value.untyped_storage()
        at = owner.get(id(memory))
        if at is not None and memory.array is before[at]:
            return InputView(at, Form.of(value))
        if id(memory) not in places:
            places[id(memory)] = len(arrays)
            arrays.append(memory.array)
        return NewTensor.of(places[id(memory)], value)

    return [spec(value, host) for value, host in zip(results, on_host, strict=True)]


def _wait(given: list[Any]) -> None:
    """Wait until no other thread has lent the inputs' memories to a program."""
    tensors = [t for t in given if isinstance(t, torch.Tensor) and _memory(t) is not None]
    if tracers.is_traced_elsewhere(map(storage.memory_of, tensors)):
        raise RuntimeError("a tensor of a trace has outlived it, and has no value")


def _finish(compiled: _Compiled, given: list[Any], arrays: list[Any]) -> list[Any]:
    """Write to tensors on the CPU, raise the errors of checks, and make the results.

    Storages of the device already have the new values: unchanged memories, where it raises.
    """
    written, scalars = compiled.written, compiled.scalars
    start = compiled.fresh
    for at, array in zip(written, arrays[start:], strict=False):
        if not is_jax(given[at]):
            given[at].copy_(transfer.host_copy(array))
    for group, array in zip(scalars, arrays[start + len(written) :], strict=False):
        with torch.no_grad():
            torch._foreach_copy_([given[i] for i in group], list(transfer.host_copy(array)))
    flags = arrays[len(arrays) - len(compiled.checks) :]
    for ok, (message, kind) in zip(flags, compiled.checks, strict=True):
        if policies.checks_indices():
            transfer.require(ok, f"{message} (in a compiled graph)", kind)
    storages: dict[int, Any] = {}
    return [
        spec.build(arrays, storages) if type(spec) is NewTensor else _other(spec, given, arrays)
        for spec in compiled.results
    ]


def _other(spec: Any, given: list[Any], arrays: list[Any]) -> Any:
    """Return a result that is no new tensor of the program; a form is that of one on meta."""
    kind = type(spec)
    if kind is Same:
        return spec.value
    if kind is Argument:
        return given[spec.place]
    if kind is InputView:  # of the memory at present: later writes to the input do not show
        return spec.form.over(storage.storage_of(storage.memory_of(given[spec.input])))
    if kind is HostCopy:
        return _host_copy(arrays[spec.output], spec.form)
    return torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device="meta")


def _host_copy(array: Any, form: Form) -> torch.Tensor:
    copy = transfer.host_copy(array)
    if copy.stride() == form.stride or not geometry.memory_order(form.size, form.stride):
        return copy
    return torch.empty_strided(copy.shape, form.stride, dtype=copy.dtype).copy_(copy)
