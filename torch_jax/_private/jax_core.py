"""Private names of JAX, looked up tolerantly; JAX is imported only by functions."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch_jax.budgets import ENTRIES_REMEMBERED


@functools.cache
def outside_traces() -> Callable[[], bool]:
    """Return the function that :func:`is_outside_traces` calls, for hot paths."""
    core = importlib.import_module("jax._src.core")
    names = "trace_state_strong_ref eval_trace axis_env_state top_axis_env".split()
    if not all(hasattr(core, name) for name in names):
        return getattr(core, "trace_state_clean", lambda: False)
    state, at_once, axes, none = (getattr(core, name) for name in names)
    return lambda: state.value is at_once and axes.value is none


def is_outside_traces() -> bool:
    """Return whether JAX is surely not tracing on this thread (False if unknown)."""
    return outside_traces()()


def unroll_threefry() -> None:
    """Lower random bits on the CPU as JAX does for accelerators: one kernel, and no loop.

    XLA takes longer to compile JAX's loop, and runs it on one core. The bits are equal. XLA does
    not inline the call: each kernel that reads the bits would compute them again.
    """
    with contextlib.suppress(ImportError, AttributeError):
        module = importlib.import_module("jax._src.random.threefry2x32")
        primitive, rounds = module.threefry2x32_p, module._threefry2x32_lowering
        jax, mlir = map(importlib.import_module, ("jax", "jax.interpreters.mlir"))
        metadata = importlib.import_module("jax.experimental.xla_metadata")
        unrolled = jax.jit(functools.partial(rounds, use_rolled_loops=False))

        def bits(*words: Any) -> Any:
            with metadata.set_xla_metadata(inlineable="false"):
                return unrolled(*words)

        rule = mlir.lower_fun(bits, multiple_results=True)
        mlir.register_lowering(primitive, rule, platform="cpu", inline=False)


def random_parts() -> tuple[Any, Any]:
    """Return ``define_prng_impl`` and ``threefry2x32_p``, without ``jax.extend``.

    To import that imports Pallas, which takes a tenth of a short program's start.
    """
    try:
        names = "jax._src.extend.random", "jax._src.random.threefry2x32"
        define, threefry = map(importlib.import_module, names)
        return define.define_prng_impl, threefry.threefry2x32_p
    except (ImportError, AttributeError):  # another release keeps them elsewhere
        public = importlib.import_module("jax.extend.random")
        return public.define_prng_impl, public.threefry2x32_p


def outside_of_traces() -> Any:
    """Return a context in which operations run at once, under any trace of this thread.

    ``jax.ensure_compile_time_eval`` does that too, but a program compiled in it for the first time
    then keeps all values made of no inputs (``zeros_like``) as constants, in memory.
    """
    core = importlib.import_module("jax._src.core")
    public = importlib.import_module("jax").ensure_compile_time_eval
    return getattr(core, "eval_context", public)()


def structure_differences(old: Any, new: Any) -> Iterator[tuple]:
    """Yield where two tree structures differ: the path, both things, and an explanation."""
    tree_util = importlib.import_module("jax._src.tree_util")
    with contextlib.suppress(Exception):  # of classes of a user's that take no other leaves
        yield from tree_util.equality_errors_pytreedef(old, new)


def x64_state() -> Any:
    """Return JAX's thread-local 64-bit flag, with ``get_local()`` and ``set_local(value)``."""
    return importlib.import_module("jax._src.config").enable_x64


def x64_setting() -> bool:
    """Return whether the user has switched JAX's 64-bit types on for the whole process."""
    return bool(x64_state().get_global())


@dataclasses.dataclass(frozen=True)
class _Wide:
    """The context of an equation, in which 64-bit types are on as well."""

    plain: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a copy asks for its own
            raise AttributeError(name)
        return getattr(self.plain, name)

    @property
    @contextlib.contextmanager
    def manager(self) -> Iterator[None]:
        flag = x64_state()
        before = flag.swap_local(True)
        try:
            with self.plain.manager:
                yield
        finally:
            flag.set_local(before)


@functools.cache
def keep_x64_in_programs() -> None:
    """Lower and differentiate an equation with 64-bit types where it was traced with them.

    JAX remembers several flags with an equation but not this one: in a program whose caller has
    the flag off, an equation of int64s would be lowered as one of int32s, and then not verify.
    """
    core = importlib.import_module("jax._src.core")
    maker = "current_jaxpr_eqn_context"
    name = maker if hasattr(core, maker) else "JaxprEqnContext"  # before jax 0.10.2
    for module in (core, importlib.import_module("jax._src.interpreters.partial_eval")):
        if hasattr(module, name):
            setattr(module, name, _wide_where_on(getattr(module, name)))


def _wide_where_on(make: Callable[..., Any]) -> Callable[..., Any]:
    get_local = x64_state().get_local

    @functools.wraps(make)
    def context(*args: Any, **kwargs: Any) -> Any:
        plain = make(*args, **kwargs)
        return _Wide(plain) if get_local() is True else plain

    return context


def set_compilation_cache(cache: Any) -> bool:
    """Let JAX keep compiled programs in ``cache``, None: as its configuration says.

    ``cache`` has the methods of ``jax._src.compilation_cache_interface.CacheInterface``. Return
    False where this JAX has no place for it.
    """
    module: Any = importlib.import_module("jax._src.compilation_cache")
    if not all(hasattr(module, n) for n in ("_cache", "_cache_initialized", "reset_cache")):
        return False
    module.reset_cache()
    if cache is not None:
        module._cache_initialized, module._cache = True, cache
    return True


def cudnn_version() -> int:
    """Return the version of the cuDNN that JAX would call, as 91000; 0 where it finds none."""
    try:
        module = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
        return int(module.check_cudnn_version())
    except Exception:  # it raises where there is none
        return 0


def what_jax_holds() -> Any:
    """Return JAX's clients with their arrays and executables, None where JAX was not used."""
    if not (clients := dict(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", {}))):
        return None
    mlir = sys.modules.get("jax._src.interpreters.mlir")
    methods = ("live_arrays", "live_executables")
    parts: list[Any] = [getattr(c, m, list)() for c in clients.values() for m in methods]
    return clients, parts, getattr(mlir, "global_thread_pool", None)


# Looked up here: in a fork, a thread that is missing may hold the loader's lock.
_exit, _on_exit = (getattr(ctypes.CDLL(None), name, None) for name in ("_exit", "on_exit"))


def leave_jax_behind(held: Any) -> None:
    """Never free JAX's objects of the parent in a forked child, and end without its clean-up.

    JAX's threads are missing: to join them, or to destroy locks of theirs, hangs or aborts.
    """
    for part in held or ():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    for module, name in (("jax._src.api", "clean_up"), ("jax._src.dispatch", "wait_for_tokens")):
        if (function := getattr(sys.modules.get(module), name, None)) is not None:
            atexit.unregister(function)
    if _on_exit is not None:  # glibc: end before the destructors of C++, with the exit status
        _on_exit(_exit, None)


def native(compiled: Any) -> Callable[..., Any]:
    """Return a function that calls a compiled program without Python, after its first call.

    A signal that Python sees between the program and us would lose the results.
    """
    return getattr(compiled, "_call", None) or compiled


def svd_of_tpus() -> Callable[..., list[Any]] | None:
    """Return JAX's function for ``svd`` on TPUs, a function of arrays; None where not found.

    It gives the values, and then, if asked, the vectors.
    """
    try:
        return importlib.import_module("jax._src.tpu.linalg.svd")._svd_tpu
    except (ImportError, AttributeError):
        return None


def costs_of(compiled: Any) -> dict[str, float]:
    """Return XLA's estimates of a program: ``flops``, ``bytes accessed``; empty where unknown."""
    return compiled.cost_analysis() or costs_of_text(compiled.as_text())  # GPUs' compiler has none


def costs_of_text(text: str) -> dict[str, float]:
    """Return XLA's estimates of the text of a compiled program, with one round of each loop."""
    try:
        parse = importlib.import_module("jaxlib._hlo").hlo_module_from_text
        count = importlib.import_module("jax._src.lib")._jax.hlo_module_cost_analysis
        return count(importlib.import_module("jax").devices("cpu")[0].client, parse(text))
    except (ImportError, AttributeError, RuntimeError, ValueError):  # of another JAX, or compiler
        return {}


def row_major(array: Any) -> Any:
    """Return an array stored in row-major order: a copy where a user chose another layout."""
    jax = importlib.import_module("jax")
    layout = getattr(getattr(array, "format", None), "layout", None)
    order = getattr(layout, "major_to_minor", None)
    if order is None or order == tuple(range(array.ndim)) or jax.default_backend() == "tpu":
        return array
    module = importlib.import_module("jax.experimental.layout")
    wanted = module.Layout(tuple(range(array.ndim)))
    return jax.device_put(array, module.Format(wanted, array.sharding))


def varying_axes(aval: Any) -> frozenset[Any]:
    """Return the axes of a mesh by which a value differs, within ``shard_map``."""
    manual = getattr(aval, "manual_axis_type", None)
    return frozenset(getattr(aval, "vma", ()) if manual is None else manual.varying)


def with_outputs(
    closed: Any, outputs: Iterable[int], all_inputs: bool = False
) -> tuple[Any, list[bool]]:
    """Return a closed jaxpr of some outputs, and a flag for each input: whether it is kept."""
    partial_eval = importlib.import_module("jax.interpreters.partial_eval")
    wanted = set(outputs)
    needed = [at in wanted for at in range(len(closed.jaxpr.outvars))]
    kept = [all_inputs] * len(closed.jaxpr.invars)
    jaxpr, used = partial_eval.dce_jaxpr(closed.jaxpr, needed, kept)
    return closed.replace(jaxpr=jaxpr), used


@functools.cache
def array_type() -> type:
    """Return the class of device arrays, of which ``jax.Array`` is an abstract base.

    It is found without making an array, which would start JAX's devices: processes that work
    together must know of each other before.
    """
    module = importlib.import_module("jax._src.array")
    if hasattr(module, "ArrayImpl"):
        return module.ArrayImpl
    return type(importlib.import_module("jax.numpy").zeros(()))


def strong(array: Any) -> Any:
    """Return an array of the same memory with a strong dtype, where it was weak."""
    aval = importlib.import_module("jax").core.ShapedArray(array.shape, array.dtype)
    return array_type()(aval, array.sharding, array._arrays, committed=array.committed)


def is_valid(tracer: Any) -> bool:
    """Return whether a tracer's trace goes on, as far as JAX shows it: not for ``jax.jit``."""
    return getattr(getattr(tracer, "_trace", None), "is_valid", lambda: True)()


def hide_frames(*packages: str) -> None:
    """Have JAX name the line of the user's own code as the origin of an equation."""
    source_info = importlib.import_module("jax._src.source_info_util")
    exclude = getattr(source_info, "register_exclusion", lambda path: None)
    for package in packages:
        exclude(os.path.dirname(sys.modules[package].__file__ or ""))


def as_if_at(line: str, closed: Any) -> Any:
    """Return a jaxpr whose equations come from a line in the form of ``tracers.user_line``."""
    if (traceback := _traceback_of(line)) is None:
        return closed
    eqns = [
        eqn.replace(source_info=eqn.source_info.replace(traceback=traceback)) for eqn in closed.eqns
    ]
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns))


@functools.lru_cache(ENTRIES_REMEMBERED)
def _traceback_of(line: str) -> Any:
    """Return a traceback of JAX's that ends in a line; None where this JAX has none."""
    source_info = importlib.import_module("jax._src.source_info_util")
    found = re.fullmatch(r"(.*):(\d+), in (.*)", line)
    if found is None or not hasattr(source_info, "current"):
        return None
    file, number, name = found.groups()
    # JAX takes a traceback of running functions: this code runs one at that line
    code = compile("result = look()", file, "exec")
    code = code.replace(co_firstlineno=int(number), co_name=name, co_qualname=name)
    names: dict[str, Any] = {"look": source_info.current}
    exec(code, names)
    return names["result"].traceback


def _of_jaxlib(name: str) -> Any:
    """Return a function of JAX's compiled part; None where another release has none."""
    return getattr(getattr(importlib.import_module("jax._src.lib"), "_jax", None), name, None)


@functools.cache
def array_maker() -> Callable[[Any], Any]:
    """Return a function that makes an array of a CPU tensor and shares its memory.

    The array is bound to no device, as JAX's own results. The public function of ``jax.dlpack``
    does the same, in ten times the time.
    """
    jax = importlib.import_module("jax")
    torch = importlib.import_module("torch")
    kind, to_buffer = array_type(), _of_jaxlib("dlpack_managed_tensor_to_buffer")
    pack: Any = getattr(torch._C, "_to_dlpack", None)
    (device, *_) = jax.local_devices()

    def as_array(tensor: Any) -> Any:
        found = to_buffer(pack(tensor), device, None)
        return kind(found.aval, found.sharding, found._arrays, committed=False, _skip_checks=True)

    try:
        tensor = torch.ones(2, dtype=torch.bfloat16, device="cpu")
        if as_array(tensor).unsafe_buffer_pointer() == tensor.data_ptr():
            return as_array
    except Exception:  # another release has other names, or takes other arguments
        pass
    return lambda tensor: strong(jax.device_put(jax.dlpack.from_dlpack(tensor), may_alias=True))


@functools.cache
def tensor_maker() -> Callable[[Any], Any]:
    """Return a function that makes a CPU tensor of an array of the CPU's and shares its memory.

    The public functions do the same, in four times the time. Both raise :exc:`BufferError` or
    :exc:`RuntimeError` for a dtype that DLPack does not know. JAX lets go of an array that PyTorch
    has let go of in :func:`free_seen`, or when it runs a program.
    """
    jax = importlib.import_module("jax")
    torch = importlib.import_module("torch")
    pack = _of_jaxlib("buffer_to_dlpack_managed_tensor")
    unpack: Any = getattr(torch._C, "_from_dlpack", None)

    def as_tensor(array: Any) -> Any:
        return unpack(pack(array))

    try:
        array = jax.device_put(1.5, jax.local_devices()[0])
        if as_tensor(array).data_ptr() == array.unsafe_buffer_pointer():
            return as_tensor
    except Exception:  # another release has other names, or takes other arguments
        pass
    return torch.from_dlpack


def free_seen() -> None:
    """Let go of arrays that other libraries have let go of, which JAX holds until it is asked."""
    collector()()


@functools.cache
def collector() -> Callable[[], Any]:
    """Return the function that :func:`free_seen` calls, for hot paths."""
    return _of_jaxlib("collect_garbage") or bool
