"""``torch_jax.trace_ops``: every call of PyTorch's that a block of code makes, as a tree.

Two modes see the calls: one of functions (``torch.nn.functional.dropout``), one of the operators
that they end in (``aten.native_dropout``). Where an operator is composed of others on this device,
the mode stays on below it, so that these are its children. Autograd's own thread inherits the
modes; each thread has its own stack of open calls.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from torch_jax._private import jax_core, pytorch
from torch_jax.core import errors, log, tracers
from torch_jax.core.active import ACTIVE
from torch_jax.dispatch import ladder
from torch_jax.eager import by_torch, kernel
from torch_jax.environment import overrides
from torch_jax.memory import shared
from torch_jax.memory.storage import tensors_in
from torch_jax.observe import operators

_STDOUT = object()
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
_COMPOSING = ("composite", "decomposition", "kernel", "override")  # and some variants
_PLAIN = (int, float, complex, str, bool, type(None), type(...))


@dataclass(eq=False, repr=False)
class Call:
    """One call: of a function, of an operator, of a compiled function; or a backward pass."""

    name: str  # ``torch.nn.functional.dropout``, ``aten.native_dropout.default``, ``backward`` …
    level: str  # ``"torch"``, ``"aten"``, ``"jit"`` or ``"backward"``
    arguments: str  # as text: dtypes and shapes for tensors
    line: str  # the user's ``file:line, in function``
    rung: str = ""  # of an operator on this device, as ``torch_jax.observe.operators.Operator``
    where: str = ""  # of its lowering
    result: str = ""  # as text, like the arguments
    error: str = ""  # that it raised
    note: str = ""
    seconds: float = 0.0  # on the host: JAX runs asynchronously, and may compute beyond that
    compiled: list[str] = field(default_factory=list)  # operators, in this call itself
    returned_input: bool = False  # it ran nothing and returned one of its arguments
    children: list[Call] = field(default_factory=list)  # the calls it made
    operator: operators.Operator | None = None
    task: int = -1  # the backward pass that the call belongs to

    def walk(self) -> Iterator[Call]:
        """Yield this call and all below it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def lines(self, depth: int = 0, line: str = "") -> Iterator[str]:
        """Yield the tree as text; the user's line if it differs from the parent's."""
        parts = [f"{self.name}({self.arguments})" if self.level in ("torch", "aten") else self.name]
        parts += [f"-> {self.result}"] * bool(self.result)
        parts += [f"| {self.rung} {self.where}".rstrip()] * bool(self.rung)
        parts += ["| returned its input"] * self.returned_input
        parts += [f"| {self.note}"] * bool(self.note)
        parts += ["| compiled"] * bool(self.compiled)
        parts += [f"| raised {self.error}"] * bool(self.error)
        parts += [f"| {self.seconds * 1e3:.2f} ms"]
        parts += [f"| {self.line.rpartition('/')[2].partition(',')[0]}"] * (self.line != line)
        yield "  " * depth + " ".join(parts)
        for child in self.children:
            yield from child.lines(depth + 1, self.line)

    def __str__(self) -> str:
        return "\n".join(self.lines())


class CallTree:
    """The calls of a ``with torch_jax.trace_ops()`` block: ``calls`` are the outermost ones."""

    def __init__(self, file: Any):
        self.calls: list[Call] = []
        self._file = file
        self._open = threading.local()  # each thread's stack of open calls
        self._own: list[Call] = []  # the stack of the thread that entered the block
        self._backward: dict[int, Call] = {}
        self._pending: list[Call] = []  # backward passes that may not be over
        self._lock = threading.RLock()
        self._modes = _FunctionLevel(self), _OperatorLevel(self)

    def __iter__(self) -> Iterator[Call]:
        """Yield every call, parents before children."""
        for call in self.calls:
            yield from call.walk()

    def __str__(self) -> str:
        return "\n".join(map(str, self.calls))

    def __enter__(self) -> CallTree:
        # PyTorch imports modules at the first call under a mode: not part of that call's time
        importlib.import_module("torch._dynamo")
        self._own = self._stack()
        self._loops = set(log.loops())  # lines that are known to compile again and again
        kernel.compile_listeners.append(self._heard_of)
        ACTIVE.call_trees = (*ACTIVE.call_trees, self)
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exception)
        ACTIVE.call_trees = tuple(trace for trace in ACTIVE.call_trees if trace is not self)
        kernel.compile_listeners.remove(self._heard_of)
        self._flush()
        for text in log.loops():
            if text not in self._loops:
                self._print(text)

    # --- calls ------------------------------------------------------------------------------------

    @contextmanager
    def record(self, call: Call) -> Iterator[Call]:
        """Make a call, open in this thread until the block ends, a part of the tree."""
        stack = self._stack()
        parent = self._parent(stack)
        if parent is not None and call.level == "aten":
            call.line = parent.line
        call.task = pytorch.current_graph_task()
        stack.append(call)
        start = time.perf_counter()
        try:
            yield call
        except BaseException as error:
            text = str(error).strip().partition("\n")[0]
            call.error = _cut(f"{type(error).__name__}: {text}", 120)
            raise
        finally:
            call.seconds = time.perf_counter() - start
            if call.level == "jit" and not call.error:
                call.note = "recorded" if call.children else "one executable"
            stack.pop()
            self._add(call, parent)

    def compiled_function(self, name: str) -> AbstractContextManager[Call]:
        """Record a call of a function under ``torch_jax.jit``."""
        return self.record(Call(f"torch_jax.jit {name}", "jit", "", tracers.user_line()))

    def overridden(self, op: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        """Record an operator that is overridden above autograd, where no mode sees it."""
        return self.operator(op, operators.describe(op), args, kwargs, run)

    def operator(self, op: Any, about: Any, args: tuple, kwargs: dict, run: Any) -> Any:
        """Run an operator, and record it with its description ``about``."""
        stack = self._stack()
        call = Call(str(op), "aten", _show_call(args, kwargs), "" if stack else tracers.user_line())
        if stack and stack[-1].name == call.name and stack[-1].arguments == call.arguments:
            return run()
        if about is not None:
            call.operator, call.rung, call.where = about, about.rung, about.where
        with self.record(call):
            result = run()
            _note_result(call, result, args, kwargs)
            if op in by_torch.SERVED and shared.is_here():
                call.note = "PyTorch's kernel"
        return result

    def _stack(self) -> list[Call]:
        return self._open.__dict__.setdefault("calls", [])

    def _add(self, call: Call, parent: Call | None) -> None:
        if call.level == "torch" and not (call.children or call.result or call.error):
            return  # a question about sizes, dtypes and the like
        if parent is not None:
            parent.children.append(call)
            if parent.level == "backward":
                parent.seconds += call.seconds
            return
        self._flush()
        self.calls.append(call)
        self._print(call)

    def _parent(self, stack: list[Call]) -> Call | None:
        """Return the parent of a new call: the last open call, or a later backward pass."""
        outer = stack[-1] if stack else None
        task = pytorch.current_graph_task()
        if task < 0 or (outer is not None and outer.task == task):
            return outer
        with self._lock:  # autograd runs passes on threads of its own
            if task not in self._backward:
                outer = outer or (self._own[-1] if self._own else None)
                found = Call("backward", "backward", "", outer.line if outer else "")
                self._backward[task] = found
                (outer.children if outer else self.calls).append(found)
                if outer is None:
                    self._pending.append(found)
            return self._backward[task]

    def _flush(self) -> None:
        """Print the backward passes that are over."""
        with self._lock:
            pending, self._pending = self._pending, []
        for call in pending:
            self._print(call)

    def _print(self, call: Call | str) -> None:
        if self._file is not None:
            print(call, file=None if self._file is _STDOUT else self._file)

    def _heard_of(self, op: Any) -> None:
        """Note an operator without an entry; a trace or a recording compiles nothing by itself."""
        stack = self._stack()
        if stack and ACTIVE.recorder is None and jax_core.is_outside_traces():
            stack[-1].compiled.append(str(op))


def trace_ops(file: Any = _STDOUT) -> CallTree:
    """Show every call of PyTorch's in a block of code: functions, and the operators they end in.

    The block's tree has, for each call, dtypes and shapes of arguments and results; for an operator
    the rung of the ladder that serves it and the line of its lowering; whether XLA compiled for it;
    the time it took; and your line. Operators that are composed of others have these below them.
    A call that runs nothing and returns its argument is marked. Times are those
    of the host: JAX computes asynchronously, so that a call may be over before its result is there.
    Calls of one thread, and of the backward passes it starts, are seen; of a function under
    :func:`torch_jax.jit` those of its first call, and one line for each later one. While any
    mode is on, PyTorch computes a few gradients (``prod``, ``linalg.eig``) by other formulas.

    Args:
      file: the file to which each outermost call is printed when it ends; None prints nothing, the
        default is ``sys.stdout``.

    Returns:
      A context manager that returns a :class:`CallTree`: ``print(trace)``, ``trace.calls``, and
      ``for call in trace`` over all of them.

    >>> x = torch.ones(3, device="jax")
    >>> with trace_ops(file=None) as trace:
    ...     _ = torch.nn.functional.dropout(x, training=False)
    >>> trace.calls[0].name, trace.calls[0].returned_input, trace.calls[0].children
    ('torch.nn.functional.dropout', True, [])
    """
    return CallTree(file)


# --- the two levels -------------------------------------------------------------------------------


class _FunctionLevel(TorchFunctionMode):
    """Sees functions and methods of PyTorch's that Python code calls."""

    def __init__(self, trace: CallTree):
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, _OPERATORS):  # seen below
            return func(*args, **kwargs)
        call = Call(_name_of(func), "torch", _show_call(args, kwargs), tracers.user_line())
        if (override := overrides.chosen(inspect.unwrap(func))) is not None:
            call.rung, call.where = "override", operators.place(override.function)
        with self.trace.record(call):
            result = func(*args, **kwargs)
            # reading an attribute is shown only where the reading runs an operator
            if call.children or not call.name.endswith(("__get__", "__set__")):
                _note_result(call, result, args, kwargs)
        return result


_WAITING = threading.local()  # ``modes`` of nested blocks that wait for an operator to run


class _OperatorLevel(TorchDispatchMode):
    """Sees the operators that reach the device."""

    supports_higher_order_operators = True

    def __init__(self, trace: CallTree):
        super().__init__()
        self.trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        devices = {tensor.device.type for tensor in tensors_in((args, kwargs))}
        if not devices and kwargs.get("device") is not None:  # of new tensors
            devices = {torch.device(kwargs["device"]).type}
        is_ours = pytorch.DEVICE_TYPE in devices and isinstance(func, torch._ops.OpOverload)
        operator = operators.describe(func) if is_ours else None
        stack = self.trace._stack()
        # a step of one of our kernels about storage: a view of its operand
        is_inside = bool(stack) and (stack[-1].level, stack[-1].rung) == ("aten", "kernel")
        is_detail = is_inside and (operator is None or operator.rung in ("view", "kernel"))
        if devices == {"meta"} or is_detail:
            return func(*args, **kwargs)
        run = functools.partial(self._run, operator, func, args, kwargs)
        return self.trace.operator(func, operator, args, kwargs, run)

    def _run(self, operator: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        waiting = vars(_WAITING).setdefault("modes", [])
        waiting.append(self)
        try:
            rung = operator.rung if operator is not None else ""
            derived = rung == "variant" and ladder.kernel_in_table(func) is None
            if not (derived or rung in _COMPOSING) or pytorch.dispatch_modes():
                return func(*args, **kwargs)
            _WAITING.modes = []
            with ExitStack() as modes:
                for mode in reversed(waiting):
                    modes.enter_context(mode)
                return func.redispatch(pytorch.DEVICE_KEYS, *args, **kwargs)
        finally:
            _WAITING.modes = waiting
            waiting.pop()


# --- text -----------------------------------------------------------------------------------------


def _note_result(call: Call, result: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Note a result as text: no tensor is kept alive."""
    tensors = list(tensors_in(result))
    if tensors or (call.level == "aten" and result is not None):
        call.result = _show(result)
    taken = list(tensors_in((args, kwargs)))
    writes = call.level == "aten" or bool(call.children)
    call.returned_input = not writes and any(one is other for one in tensors for other in taken)


def _name_of(func: Callable[..., Any]) -> str:
    plain = inspect.unwrap(func)
    name = getattr(plain, "__name__", "")
    for owner in (torch, torch.Tensor):  # torch.mm is torch.spmm too
        if getattr(owner, name, None) is plain:
            return f"torch.{name}" if owner is torch else f"torch.Tensor.{name}"
    known = resolve_name(func) or resolve_name(plain)
    return known or f"{getattr(plain, '__module__', '')}.{getattr(plain, '__qualname__', plain)}"


def _show_call(args: tuple, kwargs: dict[str, Any]) -> str:
    named = (f"{name}={_show(value)}" for name, value in kwargs.items() if value is not None)
    return ", ".join([*map(_show, args), *named])


def _show(value: Any) -> str:
    """Return a value as text; of objects the type, since their ``repr`` may run anything."""
    if isinstance(value, torch.Tensor):
        kind = value.device.type
        place = "" if kind == pytorch.DEVICE_TYPE else f"@{kind}"
        return errors.describe(value).partition("@")[0] + place
    if type(value) in _PLAIN:
        return _cut(repr(value), 40)
    if isinstance(value, torch.dtype | torch.device | torch.memory_format | torch.layout):
        return str(value).removeprefix("torch.")
    if isinstance(value, list | tuple):
        shown = [*map(_show, value[:4]), *(["…"] if len(value) > 4 else [])]
        return f"[{', '.join(shown)}]"
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return ":".join("" if part is None else _show(part) for part in parts).removesuffix(":")
    return getattr(value, "__name__", None) or f"<{type(value).__name__}>"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
