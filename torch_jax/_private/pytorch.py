"""Every private PyTorch and JAX name that torch_jax relies on, looked up tolerantly.

Nothing here runs work. A name that the installed release lacks becomes a function that raises
a clear error when it is *used*, so that ``import torch`` is never broken by a missing symbol.
JAX is imported only by functions, at the first use of the device.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

DEVICE_TYPE = "jax"


def _lookup(path: str) -> Any:
    """Return ``torch.<path>``, or a function that raises when the installed torch lacks it."""
    module_name, _, attribute = f"torch.{path}".rpartition(".")
    try:
        owner: Any = torch
        for part in module_name.split(".")[1:]:
            owner = getattr(owner, part)
        return getattr(owner, attribute)
    except AttributeError:
        return _missing(f"torch.{path}")


def _missing(name: str) -> Callable[..., Any]:
    def raise_missing(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(
            f"torch_jax needs the private name '{name}', which torch {torch.__version__} lacks. "
            "Install a torch release that torch_jax supports (torch>=2.11)."
        )

    return raise_missing


create_empty_tensor = _lookup("_C._acc.create_empty_tensor")
backend_name = _lookup("_C._get_privateuse1_backend_name")
storage_use_count = getattr(torch._C, "_storage_Use_Count", lambda address: 1 << 30)
swap_tensor_impl = _lookup("_C._swap_tensor_impl")
is_dispatched = _lookup("_C._dispatch_has_kernel")
has_kernel = _lookup("_C._dispatch_has_kernel_for_dispatch_key")
all_op_names = _lookup("_C._dispatch_get_all_op_names")
TensorBase = _lookup("_C.TensorBase")
CpuGenerator = _lookup("_C.Generator")
PRIVATE_USE1 = _lookup("_C._autograd.DeviceType.PrivateUse1")

_acc = getattr(torch._C, "_acc", None)
HookBase: Any = getattr(_acc, "PrivateUse1Hooks", object)
GuardBase: Any = getattr(_acc, "DeviceGuard", object)

# what PyTorch's thread-local state carries to the threads of a backward pass
carry = _lookup("_C._stash_obj_in_tls")
get_carried = _lookup("_C._get_obj_in_tls")
is_carried = _lookup("_C._is_key_in_tls")

_exclude_keys = _lookup("_C._ExcludeDispatchKeyGuard")
AUTOCAST_KEYS = torch._C.DispatchKeySet(_lookup("_C.DispatchKey.AutocastPrivateUse1"))
DEVICE_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
META_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)


def setup_python_backend(name: str, module: Any, hook: Any, guard: Any) -> None:
    """Rename PrivateUse1 to ``name`` and install module, hook and guard for it.

    See ``torch.utils.backend_registration._setup_privateuseone_for_python_backend``.
    """
    registration = importlib.import_module("torch.utils.backend_registration")
    name_ = "_setup_privateuseone_for_python_backend"
    setup = getattr(registration, name_, _missing(f"torch.utils.backend_registration.{name_}"))
    setup(rename=name, backend_module=module, hook=hook, device_guard=guard)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own decompositions, by overload (``torch._decomp.decomposition_table``)."""
    return getattr(importlib.import_module("torch._decomp"), "decomposition_table", {})


def dense_kernel(op: Any) -> Callable[..., Any] | None:
    """What a higher-order operator runs on real tensors, None where this torch has no such."""
    kernels = getattr(op, "py_kernels", {})
    return kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)


def add_kernel(op: Any, kernel: Callable[..., Any]) -> None:
    """Give a higher-order operator a kernel for tensors of this device."""
    op.py_impl(torch._C.DispatchKey.PrivateUse1)(kernel)


def remove_kernel(op: Any) -> None:
    """Take back what :func:`add_kernel` gave."""
    del op.py_kernels[torch._C.DispatchKey.PrivateUse1]
    forget_dispatch(op)


below_autograd = _lookup("_C._AutoDispatchBelowAutograd")


def raise_pending() -> None:
    """Raise the error that is set in this thread, if C++ calls us although one is.

    The call itself does nothing; ``ctypes`` looks for an error after it.
    """
    _error_occurred()


_error_occurred = ctypes.pythonapi.PyErr_Occurred
_error_occurred.restype = ctypes.c_void_p


def no_dispatch_modes() -> Any:
    """A context without any ``TorchDispatchMode``."""
    module = importlib.import_module("torch.utils._python_dispatch")
    return module._disable_current_modes()


def dynamo_stance(stance: str) -> Any:
    """A context with a ``torch.compiler.set_stance``, where Dynamo is loaded."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance(stance)


def guard_graph(module: str, function: str) -> None:
    """Let Dynamo compile again what it compiles now where a function without arguments differs.

    Of PyTorch's releases, one that lacks the names of Dynamo's guards has no such guard.
    """
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


def traced_modules() -> Iterator[str]:
    """The modules whose code Dynamo is tracing on this thread, callees first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        translator = frame.f_locals.get("self")
        if hasattr(translator, "current_instruction"):
            yield translator.f_globals.get("__name__", "")
        frame = frame.f_back


def fold_in_graphs(function: Callable[[], Any], guarded: bool = True) -> None:
    """Let Dynamo, where it is loaded, take a function's result for a constant, and guard it."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    known = sys.modules.get("torch._dynamo.variables.torch")
    allowed = getattr(rules, "_allowed_callable_ids", None)
    names = ("constant_fold_functions", "constant_fold_functions_need_guards")
    tables = [getattr(known, name, None) for name in names]
    if allowed is None or not all(isinstance(table, dict) for table in tables):
        return
    allowed.add(id(function))
    for table in tables if guarded else tables[:1]:
        table[function] = None  # type: ignore[index]


def forget_dispatch(op: Any) -> None:
    """Let ``torch.compile`` look for an operator's kernels again; it remembers where they were."""
    getattr(op, "_dispatch_cache", {}).clear()


def unseen(function: Any) -> Any:
    """``function``; when it runs, Dynamo compiles neither its code nor what it calls."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    code = getattr(function, "__code__", None)
    if code is not None and hasattr(frames, "_FrameExecStrategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    return function


def unlifted(program: Any) -> Any:
    """The graph module of a ``torch.export.ExportedProgram``, which holds its own tensors."""
    try:
        return program.module(check_guards=False)
    except TypeError:  # a release that has no such guards
        return program.module()


def guards_of(size: Any) -> list[Any]:
    """What PyTorch has found to hold of the sizes that may change, of which ``size`` is one."""
    guards = getattr(getattr(size.node, "shape_env", None), "guards", ())
    return [guard.expr for guard in guards]


def no_autocast() -> Any:
    """A context in which this device's autocast changes nothing on this thread."""
    return _exclude_keys(AUTOCAST_KEYS)


@functools.cache
def _trace_state_clean() -> Callable[[], bool]:
    core = importlib.import_module("jax._src.core")
    return getattr(core, "trace_state_clean", lambda: False)


def is_outside_traces() -> bool:
    """Whether JAX is surely not tracing on this thread (False where it cannot tell)."""
    return _trace_state_clean()()


def outside_of_traces() -> Any:
    """Context in which operations run at once, whatever is being traced on this thread.

    ``jax.ensure_compile_time_eval`` does that too, but what is compiled in it for the first time
    then keeps all that its program makes of no inputs (``zeros_like``) as constants, in memory.
    """
    core = importlib.import_module("jax._src.core")
    public = importlib.import_module("jax").ensure_compile_time_eval
    return getattr(core, "eval_context", public)()


def x64_state() -> Any:
    """JAX's thread-local 64-bit flag: an object with ``swap_local(value)`` and ``set_local``."""
    config = importlib.import_module("jax._src.config")
    return config.enable_x64


@functools.cache
def keep_x64_in_programs() -> None:
    """Lower and differentiate an equation with 64-bit types where it was traced with them.

    JAX remembers several flags with an equation but not this one: in a program whose caller has
    the flag off, an equation of int64s would be lowered as one of int32s, and then not verify.
    """
    core = importlib.import_module("jax._src.core")
    base: Any = getattr(core, "JaxprEqnContext", None)
    manager: Any = getattr(core, "JaxprEqnContextManager", None)
    flag = x64_state()
    if base is None or manager is None or not hasattr(flag, "get_local"):
        return

    class Manager(manager):
        def __enter__(self) -> None:
            self.before = flag.swap_local(True)
            super().__enter__()

        def __exit__(self, *exception: Any) -> None:
            super().__exit__(*exception)
            flag.set_local(self.before)

    class Context(base):
        __slots__ = ("plain",)
        manager = property(Manager)

    original = base.__new__
    known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def wide(plain: Any) -> Any:
        context = known.get(id(plain))
        if context is None:
            context = known[id(plain)] = object.__new__(Context)
            object.__setattr__(context, "plain", plain)
            for name in base.__slots__:
                if name != "__weakref__" and hasattr(plain, name):
                    object.__setattr__(context, name, getattr(plain, name))
        return context

    def new(cls: Any) -> Any:
        plain = original(cls)
        return wide(plain) if flag.get_local() is True else plain

    base.__new__ = new


def tensor_guards(tensors: list[Any]) -> Callable[..., bool]:
    """A function that tells whether tensors have the dtype, geometry and so on of these.

    In C++ where this torch has ``torch._C._dynamo.guards.TensorGuards``.
    """
    kind = getattr(
        getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None
    )
    if kind is not None and tensors:
        return kind(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    forms = list(map(_form, tensors))
    return lambda *now: all(_form(t) == form for t, form in zip(now, forms, strict=True))


def _form(tensor: Any) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


is_multithreading_enabled = _lookup("_C._is_multithreading_enabled")
set_multithreading_enabled = _lookup("_C._set_multithreading_enabled")

# What PyTorch composes of other operators, in the order in which its dispatcher prefers them.
COMPOSITE_KEYS = [
    getattr(torch._C.DispatchKey, name)
    for name in (
        "CompositeImplicitAutograd",
        "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
    )
    if hasattr(torch._C.DispatchKey, name)
]

current_graph_task: Any = getattr(torch._C, "_current_graph_task_id", lambda: -1)
dispatch_modes = _lookup("_C._len_torch_dispatch_stack")
function_modes = _lookup("_C._len_torch_function_stack")


def _device_context() -> Any:
    return getattr(importlib.import_module("torch.utils._device"), "DeviceContext", None)


def default_device() -> Any:
    """The device that factory functions use on this thread, as far as a mode sets one."""
    if not function_modes():
        return None
    overrides = importlib.import_module("torch.overrides")
    modes: list[Any] = getattr(overrides, "_get_current_function_mode_stack", list)()
    kind = _device_context()
    devices = [mode.device for mode in modes if kind is not None and isinstance(mode, kind)]
    return devices[-1] if devices else None


def factories() -> set[Callable[..., Any]]:
    """The functions that ``torch.set_default_device`` concerns."""
    module = importlib.import_module("torch.utils._device")
    return getattr(module, "_device_constructors", set)()


def script_as(wrapper: Any, original: Any) -> None:
    """Let TorchScript take ``wrapper`` for the built-in function that it wraps."""
    builtins = importlib.import_module("torch.jit._builtins")
    name = getattr(builtins, "_find_builtin", lambda function: None)(original)
    if name is not None and hasattr(builtins, "_register_builtin"):
        builtins._register_builtin(wrapper, name)


def takers_of_devices() -> list[tuple[Any, str]]:
    """Private places that take a device, as pairs of an owner and a name.

    They are the constructor of what ``with torch.device(...)`` and ``set_default_device`` enter,
    and what casts the arguments of functions under ``torch.amp.custom_fwd``.
    """
    autocast = importlib.import_module("torch.amp.autocast_mode")
    places = [(_device_context(), "__init__"), (autocast, "_cast")]
    return [(owner, name) for owner, name in places if hasattr(owner, name)]


def set_compilation_cache(cache: Any) -> bool:
    """Let JAX keep what it compiles in ``cache``, None: where its configuration says.

    ``cache`` has the methods of ``jax._src.compilation_cache_interface.CacheInterface``. False
    where this JAX has no place for it.
    """
    module: Any = importlib.import_module("jax._src.compilation_cache")
    if not all(hasattr(module, n) for n in ("_cache", "_cache_initialized", "reset_cache")):
        return False
    module.reset_cache()
    if cache is not None:
        module._cache_initialized, module._cache = True, cache
    return True


def what_jax_holds() -> Any:
    """JAX's clients with their arrays and executables, None where JAX has not been used."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    clients = dict(getattr(bridge, "_backends", {}))
    if not clients:
        return None
    mlir = sys.modules.get("jax._src.interpreters.mlir")
    methods = ("live_arrays", "live_executables")
    parts: list[Any] = [getattr(c, m, list)() for c in clients.values() for m in methods]
    return clients, parts, getattr(mlir, "global_thread_pool", None)


def leave_jax_behind(held: Any) -> None:
    """In a forked child: never free what JAX held in the parent, and end without its clean-up.

    Its threads are not there: joining them, or destroying what they wait for, hangs or aborts.
    """
    for part in held or ():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    for module, name in (("jax._src.api", "clean_up"), ("jax._src.dispatch", "wait_for_tokens")):
        function = getattr(sys.modules.get(module), name, None)
        if function is not None:
            atexit.unregister(function)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc: end before the destructors of C++, with the exit status
        libc.on_exit(libc._exit, None)


def set_profiler(profiler: Any) -> None:
    """Take back what ``sys.getprofile`` gave, which need not be a function (``cProfile``)."""
    if profiler is None or callable(profiler):
        sys.setprofile(profiler)
    else:
        sys.setprofile(None)
        profiler.enable()
