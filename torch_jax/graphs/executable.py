"""A graph of ``torch.compile``: a pure function, whose operators run once for each kind of call.

A graph is what ``torch_jax.jit(pure=True)`` asks a user to promise: it reads and writes its inputs
and the generators, and nothing else. So it is run as such a function (:mod:`torch_jax.capture`),
without audits. CPU tensors among its inputs are copied to the device, and results of the CPU back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torch_jax import config
from torch_jax._private import functorch, jax_core, pytorch
from torch_jax.capture.arguments import Arguments
from torch_jax.capture.cpu_tensors import is_host
from torch_jax.capture.history import History
from torch_jax.capture.pure import Pure, recorded
from torch_jax.core import absent, tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.log import LOGGER
from torch_jax.dispatch import call_jax
from torch_jax.graphs import runner, views
from torch_jax.memory import transfer
from torch_jax.memory.storage import is_jax
from torch_jax.recorded.lazy import is_recording

_DEVICE = torch.device(pytorch.DEVICE_TYPE)


class _History(History):
    """The history of one graph, which says how its programs are made."""

    is_differentiable = False  # it is run below autograd

    def __init__(self, name: str, donates: bool, options: dict[str, Any]):
        super().__init__(name)
        self._donates, self.options, self.where = donates, options, f"{name} of torch.compile"

    def may_take(self, arrays: list[Any], dead: frozenset[int]) -> frozenset[int]:
        """Return which arrays a program may write over."""
        return dead if self._donates else frozenset()

    def warning(self, reasons: str) -> tuple[int, str]:
        """Return how many sets of sizes and numbers it keeps programs of, and a warning of more."""
        most = config.get("jit_cache_size")
        return most, (
            f"has run for more than {most} sets of sizes and numbers, and forgets the oldest from "
            f"now on: {reasons}. Pad its inputs to fewer sizes, pass numbers that change as "
            "tensors, or keep more with torch_jax.config.set('jit_cache_size', n)"
        )

    def gives_up(self, why: str, stacklevel: int) -> None:
        """Say that the graph is recorded from now on: no program has the values that it reads."""
        LOGGER.warning("%s is recorded at each call, and several programs: %s", self.name, why)


class Executable:
    """A graph whose call takes a list of tensors and numbers, and gives a list of the same.

    The list is emptied, so that inputs without other holders are freed. The graph is AOTAutograd's,
    without writes but for ``copy_`` to its inputs. If it ``donates`` at all, its programs may take
    the memory of ``donated`` and written inputs that have no other holder for their results.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        name: str,
        donated: Sequence[int] = (),
        donates: bool = True,
        options: dict[str, Any] | None = None,
        aliases: views.Aliases = ({}, {}),
    ):
        self.graph, self.name, self._donated = graph, name, donated
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._on_host = [at for at, node in enumerate(placeholders) if _is_on_host(node)]
        # the inputs that the graph writes
        copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        written = {node.args[0] for node in copies}
        self._written = [at for at, node in enumerate(placeholders) if node in written]
        reaches = graph.graph.find_nodes(
            op="call_function", target=torch.ops.aten.as_strided.default
        )
        self._to_device = _with_surroundings if reaches else transfer.to_device
        on_host = {placeholders[at] for at in self._on_host}
        results: Any = graph.graph.output_node().args[0]
        self._count = len(results)
        self._views, self._make_views = views.take_out(graph, on_host, aliases)
        results = graph.graph.output_node().args[0]
        self._to_host = [at for at, one in enumerate(results) if _goes_to_host(one)]
        self._programs = call_jax.programs_of(graph)
        # AOTAutograd compiles under a mode that takes no real tensors
        with pytorch.no_dispatch_modes():
            self._held = {
                name: tensor if is_jax(tensor) else transfer.to_device(tensor)
                for name, tensor in runner.tensors_of(graph).items()
            }
        self.history = _History(name, donates, options or {})
        self._pure = Pure(self._run, Arguments(self._run, {}), self.history)

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph."""
        given = list(args)
        args.clear()
        return functorch.for_each_sample(self._compute, given)

    def _compute(self, given: list[Any]) -> list[Any]:
        inside, vectors = self._moved(given) if self._on_host else (given, [])
        results = self._call(inside, vectors)
        if self._on_host and self._written:
            self._write_back(given, inside, vectors)
        memories: dict[Any, torch.Tensor] = {}
        for at in self._to_host:
            if results[at] is not None:  # a token of effects
                results[at] = _on_cpu(results[at], memories)
        if self._views:
            numbers, results[self._count :] = results[self._count :], []
            with pytorch.below_autograd():
                for at, view in zip(self._views, self._make_views(*given, *numbers), strict=True):
                    results[at] = view
        return results

    def _call(self, given: list[Any], vectors: Sequence[torch.Tensor]) -> list[Any]:
        if is_recording() or ACTIVE.tracer is not None or not jax_core.is_outside_traces():
            return self._run(given, vectors)  # part of a larger program
        with pytorch.no_dispatch_modes():  # of users: as of other compilers they see no operators
            if not self._pure.is_broken and not absent.is_chosen():
                try:
                    return self._pure((given, vectors), {})
                except tracers.DataDependentError:
                    self._pure.give_up(f"a value is looked at ({tracers.user_line()})")
            return recorded(self._run, self.history, (given, vectors), {})

    def _run(self, given: list[Any], vectors: Sequence[torch.Tensor]) -> list[Any]:
        """Run the graph's operators; ``vectors`` hold what has its dtype in its place."""
        scalars = {vector.dtype: iter(vector.unbind()) for vector in vectors}
        inputs = [next(scalars[one]) if isinstance(one, torch.dtype) else one for one in given]
        if ACTIVE.observer is not None and ACTIVE.observer.history is self.history:
            ACTIVE.observer.let_go += [inputs[at] for at in self._donated]
        written = [inputs[at] for at in self._written if not inputs[at].is_inference()]
        versions = [tensor._version for tensor in written]
        with pytorch.below_autograd(), _DEVICE:
            results = list(runner.Runner(self.graph, self._held).run(*inputs))
        pytorch.set_versions(written, versions)  # AOTAutograd counts the writes
        return results

    def _moved(self, given: list[Any]) -> tuple[list[Any], list[torch.Tensor]]:
        """Return the inputs on the device; those without dims in one vector for each dtype."""
        inside = list(given)
        scalars: dict[torch.dtype, list[torch.Tensor]] = {}
        for at in self._on_host:
            tensor = given[at]
            if not is_host(tensor):  # a token of effects, or the key of a draw
                continue
            if tensor.dim():
                inside[at] = self._to_device(tensor.detach())
            else:
                scalars.setdefault(tensor.dtype, []).append(tensor.detach())
                inside[at] = tensor.dtype
        return inside, [transfer.to_device(torch.stack(of)) for of in scalars.values()]

    def _write_back(self, given: list[Any], inside: list[Any], vectors: list) -> None:
        """Write into CPU tensors what the graph has written into their copies."""
        new = {vector.dtype: iter(vector.cpu()) for vector in vectors}
        for at in self._on_host:
            dtype = inside[at]
            value = next(new[dtype]) if dtype in new else inside[at]
            if at in self._written:
                given[at].copy_(value)


def _with_surroundings(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a CPU tensor with all of its memory, in which ``as_strided`` may reach beyond it."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = transfer.to_device(tensor.as_strided((count,), (1,), 0))
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _on_cpu(result: torch.Tensor, memories: dict[Any, torch.Tensor]) -> torch.Tensor:
    """Return a result on the CPU, at its place in a memory that others of its results share."""
    size, stride, start = result.shape, result.stride(), int(result.storage_offset())
    form = id(result.untyped_storage()), result.dtype, result.is_conj(), result.is_neg()
    if form not in memories:
        count = result.untyped_storage().nbytes() // result.element_size()
        memories[form] = result.as_strided((count,), (1,), 0).cpu()
    return memories[form].as_strided(size, stride, start).detach()  # users write into it


def _is_on_host(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _goes_to_host(node: Any) -> bool:
    """Return whether a result is on the CPU; states of generators only pass through graphs."""
    if not (isinstance(node, fx.Node) and _is_on_host(node)):
        return False
    source = node.args[0] if node.args else None
    return "run_and_save_rng_state" not in str(getattr(source, "target", ""))
