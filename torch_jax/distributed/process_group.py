"""``init_process_group("jax")``: PyTorch's process group, over programs of JAX's.

Collectives of every training step are programs over all processes (:mod:`.programs`). All others –
tensors of the CPU, point to point, objects, rare reductions, parts of different sizes – run in
PyTorch's own gloo, on copies of tensors of the device.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import jax
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torch_jax._private import pytorch
from torch_jax.core import errors, tracers
from torch_jax.core.active import ACTIVE
from torch_jax.distributed import agreement, joining, programs
from torch_jax.distributed.work import LAUNCHER, HostWork, ProgramWork
from torch_jax.memory import transfer
from torch_jax.memory.storage import tensors_in

_JAX = pytorch.DEVICE_TYPE


def create(options: Any, _backend_options: Any) -> ProcessGroup:
    """Make a group, as ``torch.distributed`` asks for it; all its processes do so at once."""
    rank, size = options.group_rank, options.group_size
    # a store for this group alone: that of torchrun holds keys of earlier groups of its name. All
    # processes of a group have counted themselves before one of them can ask for the next
    at = (options.store.add("torch_jax/made", 1) - 1) // size
    store = dist.PrefixStore(f"torch_jax/{at}", options.store)
    if not (ranks := tuple(options.global_ranks_in_group)):
        joining.join(store, rank, size)
        ranks = tuple(range(size)) if size > 1 else (jax.process_index(),)
    return ProcessGroup(store, rank, ranks, options.timeout, options.group_id)


def _is_on_device(*values: Any) -> bool:
    """Return whether tensors are of the device; raise if only some are, or one is sparse."""
    tensors = list(tensors_in(values))
    on_device = [tensor.device.type == _JAX for tensor in tensors]
    if not any(on_device):
        return False
    if not all(on_device):
        shown = ", ".join(map(errors.describe, tensors))
        raise RuntimeError(f"a collective takes tensors of one device, not of two: {shown}")
    if any(tensor.layout != torch.strided for tensor in tensors):
        raise NotImplementedError("collectives on device 'jax' take dense tensors, not sparse ones")
    if ACTIVE.tracer is not None:
        raise tracers.NotTraceableError(
            "a collective of torch.distributed is no part of a graph of torch.compile's: call it "
            "outside of the compiled function, or use torch_jax.jit"
        )
    if ACTIVE.observer is not None:
        ACTIVE.observer.refuse(f"it calls a collective ({tracers.user_line()})")
    return True


def _check_same(name: str, first: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Raise PyTorch's error if tensors that one collective fills differ in shape or dtype."""
    for at, tensor in enumerate(tensors):
        dtypes, shapes = (first.dtype, tensor.dtype), (tuple(first.shape), tuple(tensor.shape))
        for what, (expected, got) in (("type", dtypes), ("size", shapes)):
            if got != expected:
                raise RuntimeError(
                    f"{name}: invalid tensor {what} at index {at} (expected {expected}, got {got})"
                )


def _check_parts(name: str, whole: torch.Tensor, part: torch.Tensor, count: int) -> None:
    if whole.dtype != part.dtype:
        raise RuntimeError(
            f"{name}: tensors of one dtype, not of {whole.dtype} and {part.dtype}, are needed"
        )
    if whole.numel() != part.numel() * count:
        raise RuntimeError(
            f"{name}: {errors.describe(whole)} is not {count} times {errors.describe(part)}"
        )


def _reduction(options: Any, tensors: list[torch.Tensor]) -> tuple[str, list[torch.Tensor]]:
    """Return a reduction's name, and its tensors: multiplied before, for ``PREMUL_SUM``."""
    op: Any = dist.ReduceOp.SUM if options is None else options.reduceOp
    name = str(getattr(op, "op", op)).rpartition(".")[2]
    if name == "PREMUL_SUM":
        return "SUM", [tensor.detach() * op.factor for tensor in tensors]
    return name, tensors


def _has_program(op: str, tensors: list[torch.Tensor]) -> bool:
    """Return whether JAX has this reduction; gloo raises if a dtype has none."""
    if op == "AVG":
        return all(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
    is_complex = any(tensor.is_complex() for tensor in tensors)
    return op in programs.REDUCTIONS and not (is_complex and op in ("MIN", "MAX"))


def _list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


_Base: Any = dist.ProcessGroup  # its methods are overloaded; PyTorch calls those with options


class ProcessGroup(_Base):
    """A group of processes, each with one device.

    Methods are those that PyTorch calls, from Python and from C++ (DDP, functional collectives).
    """

    def __init__(
        self, store: Any, rank: int, ranks: tuple[int, ...], timeout: timedelta, called: str
    ) -> None:
        super().__init__(rank, len(ranks))
        self._store, self.ranks, self.timeout = store, ranks, timeout
        name = store.compare_set("torch_jax/name", "", uuid.uuid4().hex).decode()
        self._order = agreement.Order(name, called, rank, ranks)
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, len(ranks), timeout)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        for device in ("cpu", _JAX):  # object collectives take a group's CPU backend
            self._register_backend(torch.device(device), kind, self._gloo)

    def shutdown(self) -> None:
        """Do nothing: gloo ends with the group."""

    def get_group_store(self) -> Any:
        """Return the store through which the processes of the group have met."""
        return self._store

    def getBackendName(self) -> str:
        """Return the backend's name."""
        return _JAX

    def _program(
        self, name: str, body: programs.Body, static: tuple, inputs: Any, outputs: Any, options: Any
    ) -> Any:
        """Launch a program with the values that tensors have now."""
        arrays = [transfer.value_of(tensor.detach()) for tensor in inputs]
        try:
            LAUNCHER.check()
        except RuntimeError as error:
            self._order.refuse(str(error))
            raise joining.failed(name, error) from error
        call = self._next(name, static, inputs, options)
        run = functools.partial(programs.run, self.ranks, body, static, arrays)
        return LAUNCHER.launch(ProgramWork(name, call, run, self._limit(options), outputs))

    def _next(self, name: str, static: tuple, tensors: Any, options: Any = None) -> agreement.Call:
        """Return the group's next collective; ``tensors`` are of one form in all processes."""
        try:
            return self._order.next(name, static, tensors, options)
        except RuntimeError as error:  # the store is gone
            raise joining.failed(name, error) from error

    def _limit(self, options: Any = None) -> timedelta:
        given = getattr(options, "timeout", None)
        return given if given is not None and given > timedelta(0) else self.timeout

    def _on_host(
        self,
        method: str,
        arguments: tuple,
        outputs: Any,
        *rest: Any,
        source: int = -1,
        alike: Any = None,
        static: tuple = (),
    ) -> Any:
        """Run a method of gloo: with the tensors themselves on the CPU, else with copies of them.

        ``alike`` are the tensors that have one form in all processes, None for work of two
        processes. Collectives of tensors on the CPU are compared as far as gloo does that.
        """
        run, filled = getattr(self._gloo, method), list(tensors_in(outputs))
        rest = tuple(one for one in rest if one is not None)
        on_device = _is_on_device(arguments)
        copies: dict[int, torch.Tensor] = {}

        def copy(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if id(value) not in copies:
                    copies[id(value)] = value.detach().cpu().contiguous()
                return copies[id(value)]
            return [copy(one) for one in value] if isinstance(value, list | tuple) else value

        call = None
        try:
            given = list(map(copy, arguments)) if on_device else arguments
            if on_device and alike is not None:
                call = self._next(method, static, list(tensors_in(alike)), *rest[:1])
            work = run(*given, *rest)
        except RuntimeError as error:
            raise joining.explained(method, error) from error
        written = [copies[id(tensor)] for tensor in filled] if on_device else []
        return HostWork(method, work, filled, written, source, call, self._limit(*rest[:1]))

    def _one_by_one(
        self, method: str, outputs: Any, inputs: Any, options: Any, *static: Any
    ) -> Any:
        """Run a method of gloo for each of many tensors: it takes one."""
        work: Any = None
        for output, tensor in zip(outputs, inputs, strict=True):
            if work is not None:
                work.wait()
            more: dict[str, Any] = {"alike": tensor, "static": static}
            work = self._on_host(method, (output, tensor), output, options, **more)
        return work

    # --- reductions -------------------------------------------------------------------------------

    def _all_reduce(self, name: str, tensors: Any, opts: Any = None, keep: bool = True) -> Any:
        """Reduce tensors over the processes, in place, as one program."""
        tensors = _list(tensors)
        if not _is_on_device(tensors):
            return self._on_host(name, (tensors,), tensors, opts)
        op, given = _reduction(opts, tensors)
        if not _has_program(op, tensors):
            filled = tensors if keep else []
            return self._on_host(name, (tensors,), filled, opts, alike=tensors, static=(op,))
        outputs = tensors if keep else [torch.empty_like(tensor) for tensor in tensors]
        return self._program(name, programs.all_reduce, (op,), given, outputs, opts)

    allreduce = functools.partialmethod(_all_reduce, "allreduce")
    allreduce_coalesced = functools.partialmethod(_all_reduce, "allreduce_coalesced")

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce tensors over the processes into those of one."""
        options = opts or c10d.ReduceOptions()
        return self._all_reduce("reduce", tensors, options, self.rank() == options.rootRank)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce lists of tensors over the processes; each process gets the one of its rank."""
        if not _is_on_device(outputs, inputs):
            return self._on_host("reduce_scatter", (outputs, inputs), outputs, opts)
        whole = []
        for output, parts in zip(outputs, inputs, strict=True):
            _check_same("reduce_scatter", output, parts)
            whole.append(torch.stack([part.detach() for part in parts]))
        return self._reduce_scatter("reduce_scatter", outputs, whole, opts)

    def _reduce_scatter(self, name: str, outputs: Any, inputs: Any, options: Any) -> Any:
        for output, whole in zip(outputs, inputs, strict=True):
            _check_parts(name, whole, output, self.size())
        op, given = _reduction(options, list(inputs))
        if not _has_program(op, given):
            return self._one_by_one("_reduce_scatter_base", outputs, given, options, op)
        return self._program(name, programs.reduce_scatter, (op,), given, outputs, options)

    def reduce_scatter_single(self, output: Any, whole: Any, opts: Any = None) -> Any:
        """Reduce a tensor over the processes; each gets its part of it."""
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce tensors over the processes, as one program; each gets its parts of them."""
        if not _is_on_device(outputs, inputs):
            return self._one_by_one("_reduce_scatter_base", outputs, inputs, opts)
        return self._reduce_scatter("reduce_scatter_tensor", outputs, inputs, opts)

    # --- moving -----------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Give all processes the tensors of one."""
        options = opts or c10d.BroadcastOptions()
        tensors = _list(tensors)
        if not _is_on_device(tensors):
            return self._on_host("broadcast", (tensors,), tensors, options)
        root = (int(options.rootRank),)
        return self._program("broadcast", programs.broadcast, root, tensors, tensors, options)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give all processes the tensors of all, in lists."""
        if not _is_on_device(outputs, inputs):
            return self._on_host("allgather", (outputs, inputs), outputs, opts)
        inputs = _list(inputs)
        for parts, tensor in zip(outputs, inputs, strict=True):
            if len(parts) != self.size():
                raise RuntimeError(
                    f"allgather: {self.size()} tensors are needed for {errors.describe(tensor)}, "
                    f"one for each process, but there are {len(parts)}"
                )
            _check_same("allgather", tensor, parts)
        filled = list(tensors_in(list(outputs)))
        return self._program("allgather", programs.all_gather_apart, (), inputs, filled, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give all processes the tensors of all, a list for each process."""
        if not _is_on_device(outputs, inputs):
            return self._on_host("allgather_coalesced", (outputs, inputs), outputs, opts)
        return self.allgather(list(map(list, zip(*outputs, strict=True))), inputs, opts)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Give all processes the tensors of all, in one tensor."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give all processes the tensors of all, in one tensor for each, as one program."""
        if not _is_on_device(outputs, inputs):
            return self._one_by_one("_allgather_base", outputs, inputs, opts)
        name = "all_gather_into_tensor"
        for whole, tensor in zip(outputs, inputs, strict=True):
            _check_parts(name, whole, tensor, self.size())
        return self._program(name, programs.all_gather, (), inputs, outputs, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give one process the tensors of all."""
        options = opts or c10d.GatherOptions()
        return self._on_host("gather", (outputs, inputs), outputs, options, alike=inputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give each process its tensor of those that one has."""
        options = opts or c10d.ScatterOptions()
        return self._on_host("scatter", (outputs, inputs), outputs, options, alike=outputs)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give each process the tensors that all have for it."""
        forms = {(tensor.shape, tensor.dtype) for tensor in (*outputs, *inputs)}
        are_alike = len(forms) == 1 and len(outputs) == len(inputs) == self.size()
        if _is_on_device(outputs, inputs) and are_alike:
            return self._program("alltoall", programs.exchange, (), inputs, outputs, opts)
        return self._on_host("alltoall", (outputs, inputs), outputs, opts, alike=())

    def alltoall_base(
        self, output: Any, tensor: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        """Give each process the parts that all have for it, of one tensor."""
        if output_splits or input_splits or not _is_on_device(output, tensor):
            splits = (list(output_splits or ()), list(input_splits or ()))
            return self._on_host("alltoall_base", (output, tensor, *splits), output, opts, alike=())
        if output.dtype != tensor.dtype or output.numel() != tensor.numel():
            raise RuntimeError(
                f"all_to_all_single: {errors.describe(output)} and {errors.describe(tensor)} must "
                "have as many elements, of one dtype"
            )
        if tensor.dim() and tensor.shape[0] % self.size():
            raise RuntimeError(
                f"all_to_all_single: the first dimension of {errors.describe(tensor)} does not "
                f"divide equally across {self.size()} processes"
            )
        return self._program("all_to_all_single", programs.all_to_all, (), [tensor], [output], opts)

    # --- point to point, and no tensors -----------------------------------------------------------

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        """Send a tensor to one process."""
        self._check_rank("send", to)
        return self._on_host("send", (_list(tensors),), [], to, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        """Receive a tensor from one process."""
        self._check_rank("recv", source)
        tensors = _list(tensors)
        return self._on_host("recv", (tensors,), tensors, source, tag, source=source)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive a tensor from any process that sends one."""
        tensors = _list(tensors)
        return self._on_host("recv_anysource", (tensors,), tensors, tag)

    def _check_rank(self, name: str, rank: int) -> None:
        """Raise for a rank that the group does not have: gloo would end the process."""
        if not 0 <= rank < self.size():
            raise ValueError(f"{name}: a group of {self.size()} processes has no rank {rank}")

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all processes have come here."""
        options = opts or c10d.BarrierOptions()
        call = self._next("barrier", (), (), options)
        work = self._gloo.barrier(options)
        return HostWork("barrier", work, [], [], -1, call, self._limit(options))

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until all processes have come here; raises with the rank of one that has not."""
        self._gloo.monitored_barrier(timeout or self.timeout, wait_all_ranks)

    # names of other releases of PyTorch's
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    all_to_all_single = alltoall_base
