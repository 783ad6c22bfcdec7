"""Private names of Dynamo and of fx graphs, looked up tolerantly, as in ``pytorch.py``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_jax._private import pytorch


class _Stances:
    """Dynamo's stance: the process's, or that of the calling thread."""

    taken = threading.local()

    def __init__(self, of_process: Any):
        self.of_process = of_process

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self.taken, "stance", None) or self.of_process, name)


@contextlib.contextmanager
def dynamo_stance(stance: str) -> Iterator[None]:
    """Take a stance of ``torch.compiler.set_stance`` on this thread, where Dynamo is loaded.

    PyTorch has one for the process, and each block restores the one before its own: of two threads
    in turn, the second would restore the first one's, which then stays.
    """
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    if not hasattr(frames, "_stance"):
        yield
        return
    if not isinstance(frames._stance, _Stances):
        frames._stance = _Stances(frames._stance)
    before = getattr(_Stances.taken, "stance", None)
    _Stances.taken.stance = frames.DynamoStance(stance)
    try:
        yield
    finally:
        _Stances.taken.stance = before


@functools.cache
def spare_imports() -> None:
    """Let PyTorch's meta functions run without importing Dynamo, which takes most of a second.

    Many are wrapped so that Dynamo does not trace them, and the first call of each imports Dynamo.
    Until Dynamo is imported elsewhere, there is no tracer.
    """
    if "torch._dynamo" in sys.modules:
        return
    seen: set[int] = set()
    for table in getattr(torch._decomp, "global_decomposition_table", {}).values():
        for function in table.values():
            while inspect.isfunction(function) and id(function) not in seen:
                seen.add(id(function))
                inside = _decorated(function)
                if function.__code__ is _DISABLED and inside is not None:
                    _defer(function, inside)
                function = inside


def _decorated(function: Any) -> Any:
    """Return the function that a decorator of PyTorch's calls, which it names ``fn``."""
    names = function.__code__.co_freevars
    return function.__closure__[names.index("fn")].cell_contents if "fn" in names else None


# the code of torch._compile._disable_dynamo's wrappers
_DISABLED = getattr(torch._disable_dynamo(lambda: None), "__code__", None)


def _defer(disabled: Any, function: Any) -> None:
    """Have the wrapper ``disabled`` call its function directly, until Dynamo is imported."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        function.__dynamo_disable = None  # the wrapper calls Dynamo now
        return disabled(*args, **kwargs)

    if getattr(function, "__dynamo_disable", None) is None:
        function.__dynamo_disable = call


def guard_graph(module: str, function: str) -> None:
    """Let Dynamo compile again where the result of a function without arguments has changed."""
    if torch._guards.TracingContext.try_get() is None:
        return
    source = importlib.import_module("torch._dynamo.source")
    guards = importlib.import_module("torch._dynamo.guards")
    if not (hasattr(source, "ImportSource") and hasattr(source, "CallFunctionNoArgsSource")):
        return
    package, *names = module.split(".")
    at = source.ImportSource(package)
    for name in (*names, function):
        at = source.AttrSource(at, name)
    called = source.CallFunctionNoArgsSource(at)
    guards.install_guard(called.make_guard(guards.GuardBuilder.EQUALS_MATCH))


def inputs_of_results(graph: Any) -> tuple[dict[int, int], dict[int, int]]:
    """Return which results of AOTAutograd's graph are views of which inputs, or their new value."""
    metadata = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    if metadata is None:
        return {}, {}
    first, written = len(metadata.tokens), metadata.mutated_inp_runtime_indices
    inputs, views = graph.graph.find_nodes(op="placeholder"), {}
    for at, one in enumerate(metadata.output_info):
        if "_input" in one.output_type.name:
            base = views[first + len(written) + at] = first + one.base_idx
            if "Base" in type(inputs[base].meta.get("desc")).__name__:
                # views begin at an argument, but AOTAutograd would repeat them from there of a base
                # that it has made of several
                metadata.output_info[at] = dataclasses.replace(one, view_meta_sequence=None)
    return views, {at: first + of for at, of in enumerate(written, first)}


def traced_modules() -> Iterator[str]:
    """Yield the modules whose code Dynamo is tracing on this thread, callees first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        translator = frame.f_locals.get("self")
        if hasattr(translator, "current_instruction"):
            yield translator.f_globals.get("__name__", "")
        frame = frame.f_back


def fold_in_graphs(function: Callable[[], Any], guarded: bool) -> None:
    """Let Dynamo, where it is loaded, take a function's result for a constant, and guard it."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    allowed, tables = getattr(rules, "_allowed_callable_ids", None), tables_of_constants()
    if allowed is None or not tables:
        return
    allowed.add(id(function))
    for table in tables if guarded else tables[:1]:
        table[function] = None


def tables_of_constants() -> list[dict[Any, None]]:
    """Return the functions whose results Dynamo takes for constants, and those that it guards."""
    known = sys.modules.get("torch._dynamo.variables.torch")
    names = ("constant_fold_functions", "constant_fold_functions_need_guards")
    tables: list[Any] = [getattr(known, name, None) for name in names]
    return tables if all(isinstance(table, dict) for table in tables) else []


def unseen(function: Any) -> Any:
    """Return ``function`` such that Dynamo compiles neither its code nor its callees."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    code = getattr(function, "__code__", None)
    if code is not None and hasattr(frames, "_FrameExecStrategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    return function


def guards_of(size: Any) -> list[Any]:
    """Return PyTorch's guards on the sizes that may change, of which ``size`` is one."""
    return [guard.expr for guard in getattr(getattr(size.node, "shape_env", None), "guards", ())]


def tensor_guards(tensors: list[Any]) -> Callable[..., bool]:
    """Return a check whether tensors have the dtype, geometry and so on of these; in C++."""
    if not tensors:
        return lambda: True
    with pytorch.no_dispatch_modes():  # a mode would count among the properties of tensors
        check = _Guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return lambda *now: check(*now) or _fit_without_modes(check, now)


_Guards = pytorch._lookup("_C._dynamo.guards.TensorGuards")


def _fit_without_modes(check: Callable[..., bool], tensors: Sequence[Any]) -> bool:
    if not pytorch.dispatch_modes():
        return False
    with pytorch.no_dispatch_modes():
        return check(*tensors)
