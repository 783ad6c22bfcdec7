"""Every private PyTorch and JAX name that torch_jax relies on, looked up tolerantly.

Nothing here runs work. A name that the installed release lacks becomes a function that raises
a clear error when it is *used*, so that ``import torch`` is never broken by a missing symbol.
JAX is imported only by functions, at the first use of the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import itertools
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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

        def raise_missing(*_args: Any, **_kwargs: Any) -> Any:
            raise RuntimeError(
                f"torch_jax needs the private name 'torch.{path}', which torch "
                f"{torch.__version__} lacks. Install a torch release that torch_jax supports "
                "(torch>=2.11)."
            )

        return raise_missing


create_empty_tensor = _lookup("_C._acc.create_empty_tensor")
set_up_backend = _lookup("utils.backend_registration._setup_privateuseone_for_python_backend")
reparametrized = _lookup("nn.utils.stateless._reparametrize_module")
backend_name = _lookup("_C._get_privateuse1_backend_name")
storage_use_count = getattr(torch._C, "_storage_Use_Count", lambda address: 1 << 30)
swap_tensor_impl = _lookup("_C._swap_tensor_impl")
has_storage = _lookup("_C._has_storage")
NodeThatRaises = _lookup("_C._functions.DelayedError")
is_dispatched = _lookup("_C._dispatch_has_kernel")
has_kernel = _lookup("_C._dispatch_has_kernel_for_dispatch_key")
all_op_names = _lookup("_C._dispatch_get_all_op_names")
names_with_kernel = _lookup("_C._dispatch_get_registrations_for_dispatch_key")
CpuGenerator = _lookup("_C.Generator")
float32_matmul_precision = getattr(
    torch._C, "_get_float32_matmul_precision", torch.get_float32_matmul_precision
)
fp32_precision = getattr(torch._C, "_get_fp32_precision_getter", lambda backend, op: "none")
PRIVATE_USE1 = _lookup("_C._autograd.DeviceType.PrivateUse1")

_acc = getattr(torch._C, "_acc", None)
HookBase: Any = getattr(_acc, "PrivateUse1Hooks", object)
GuardBase: Any = getattr(_acc, "DeviceGuard", object)

_carry = _lookup("_C._stash_obj_in_tls")


def carry(key: str, value: Any) -> None:
    """Put an object into PyTorch's thread-local state, which threads of a backward pass share."""
    if _carry_takes_a_reference():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _carry(key, value)


@functools.cache
def _carry_takes_a_reference() -> bool:
    """Return whether PyTorch will drop a reference that it never took, as torch 2.11 does."""
    value = object()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))  # the one that may be dropped
    before = sys.getrefcount(value)
    _carry("torch_jax references", value)
    return sys.getrefcount(value) == before


get_carried = _lookup("_C._get_obj_in_tls")
is_carried = _lookup("_C._is_key_in_tls")

_exclude_keys = _lookup("_C._ExcludeDispatchKeyGuard")
_without_transforms = _lookup("_C._DisableFuncTorch")
_AUTOCAST_OF_CPU = torch._C.DispatchKeySet(_lookup("_C.DispatchKey.AutocastCPU"))


def without_autocast_of_cpu(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator of CPU tensors without the casts of ``torch.autocast("cpu")``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _exclude_keys(_AUTOCAST_OF_CPU):
            return run(*args, **kwargs)

    return call


@contextlib.contextmanager
def kernels_alone() -> Iterator[None]:
    """Hide operators of CPU tensors from all modes and transforms, autograd and autocast."""
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
        _without_transforms(),
        torch._C._AutoDispatchBelowAutograd(),
        _exclude_keys(_AUTOCAST_OF_CPU),
    ):
        yield


_AUTOCAST_KEY = _lookup("_C.DispatchKey.AutocastPrivateUse1")
AUTOCAST_KEYS = torch._C.DispatchKeySet(_AUTOCAST_KEY)
DEVICE_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
META_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
SPARSE_CPU_KEYS = torch._C.DispatchKeySet(_lookup("_C.DispatchKey.SparseCPU"))
SPARSE_META_KEYS = torch._C.DispatchKeySet(_lookup("_C.DispatchKey.SparseMeta"))
NESTED_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensorCPU)


def redispatched(op: Any, keys: Any) -> Callable[..., Any]:
    """Return an operator's kernel of another dispatch key, called by C where it can be."""
    handle = getattr(getattr(op, "_handle", None), "redispatch_boxed", None)
    return functools.partial(handle or op.redispatch, keys)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions, by overload (``torch._decomp.decomposition_table``)."""
    return getattr(importlib.import_module("torch._decomp"), "decomposition_table", {})


def register(library: Any, names: Iterable[str], make: Callable[[str], Any], key: str) -> None:
    """Register kernels under many names, at once: one by one takes five times as long."""
    enter = library.m.impl
    for name in names:
        kernel = make(name)
        try:
            enter(name, key, kernel, False)
        except TypeError:  # another release takes other arguments there
            library.impl(name, kernel, key)


def register_fake(library: Any, name: str, function: Callable[..., Any]) -> None:
    """Do as ``torch.library.register_fake``, without its look through all modules."""
    registry = _lookup("_library.simple_registry.singleton")
    try:
        handle = registry.find(name).fake_impl.register(function, __name__, lib=library)
        library._registration_handles.append(handle)
    except (AttributeError, TypeError):  # another release keeps them elsewhere
        torch.library.register_fake(name, function, lib=library)


def dense_kernel(op: Any) -> Callable[..., Any] | None:
    """Return the kernel of a higher-order operator for real tensors, None without one."""
    return getattr(op, "py_kernels", {}).get(torch._C.DispatchKey.CompositeExplicitAutograd)


def add_kernel(op: Any, kernel: Callable[..., Any]) -> Callable[[], None]:
    """Give a higher-order operator a kernel for tensors of this device; return the undo."""
    op.py_impl(torch._C.DispatchKey.PrivateUse1)(kernel)

    def back() -> None:
        del op.py_kernels[torch._C.DispatchKey.PrivateUse1]
        forget_dispatch(op)

    return back


def follow_autocast() -> Callable[[], None]:
    """Give higher-order operators, also later ones, CUDA's rules of autocast; return the undo."""
    undo = [_follow_autocast(op) for op in getattr(torch._ops, "_higher_order_ops", {}).values()]
    defaults = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    defaults.append(_AUTOCAST_KEY)

    def back() -> None:
        defaults.remove(_AUTOCAST_KEY)
        for one in undo:
            one()

    return back


def _follow_autocast(op: Any) -> Callable[[], None]:
    before = op.non_fallthrough_keys
    if (of_cuda := op.py_kernels.get(torch._C.DispatchKey.AutocastCUDA)) is None:
        op.fallthrough(_AUTOCAST_KEY)
    else:

        def cast(*args: Any, **kwargs: Any) -> Any:
            with _exclude_keys(AUTOCAST_KEYS):
                return of_cuda(*args, **kwargs)

        op.py_impl(_AUTOCAST_KEY)(cast)

    def back() -> None:
        op.non_fallthrough_keys = before
        op.py_kernels.pop(_AUTOCAST_KEY, None)
        forget_dispatch(op)

    return back


def forget_dispatch(op: Any) -> None:
    """Let ``torch.compile`` look for an operator's kernels again; it remembers their places."""
    getattr(op, "_dispatch_cache", {}).clear()


fills_new_memory = _lookup("_C._get_deterministic_fill_uninitialized_memory")
below_autograd = _lookup("_C._AutoDispatchBelowAutograd")
without_functions_of_subclasses = _lookup("_C.DisableTorchFunctionSubclass")
AFTER_AUTOGRAD = _lookup("_C._after_autograd_keyset")


def takes_errors(key: str, found: dict[bytes, Any]) -> Iterator[None]:
    """Return an iterator, each step of which takes the error that is set but not raised.

    C++ may call where Python must not run. All of it is C: there is no line of Python in which the
    error would be raised, or a signal noticed. But a new tuple may start Python's garbage
    collector, and with it another thread, which takes a step, too. So an error is copied where
    nothing is allocated between, and then belongs to its own step.

    ``found`` gets, by the addresses of an error's type, value and traceback, of which
    :func:`error_at` makes an error, the list that this thread carries by the name ``key``.
    """
    parts = _Parts()
    size = ctypes.sizeof(ctypes.c_void_p)
    places = tuple(ctypes.byref(parts, n * size) for n in range(3))
    fetched = itertools.starmap(_fetch_error, itertools.repeat(places))
    kinds = map(operator.itemgetter(0), itertools.repeat(parts))  # None: no error is set
    asked = map(operator.itemgetter(1), zip(fetched, kinds, strict=False))
    copies = map(bytes, itertools.repeat(parts))
    kept = map(found.__setitem__, copies, map(get_carried, itertools.repeat(key)))
    does: Any = map({None: int}.get, asked, itertools.repeat(kept.__next__))
    return map(operator.call, does)


def error_at(addresses: bytes) -> BaseException:
    """Return the error whose parts are at these addresses; our references are given up."""
    try:
        _set_error(*_Parts.from_buffer_copy(addresses))
    except BaseException as error:
        return error
    raise SystemError("no error was set")


_Parts = ctypes.c_void_p * 3  # of an error: its type, value and traceback
_fetch_error, _set_error = ctypes.pythonapi.PyErr_Fetch, ctypes.pythonapi.PyErr_Restore
_fetch_error.restype = _set_error.restype = None
_set_error.argtypes = [ctypes.c_void_p] * 3


class OperatorMode(TorchDispatchMode):
    """A mode that higher-order operators reach, too."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return ``False``: to skip Dynamo, PyTorch would import it, which takes seconds."""
        return False


def keys_of_own_gradient() -> torch._C.DispatchKeySet | None:
    """Return keys by which autograd takes a composite, that has a gradient, as a whole.

    None where a mode of others sees operators: it is to see those that it sees on other devices.
    """
    if not dispatch_modes():
        return _WHOLE
    ours = all(type(mode).__module__.startswith("torch_jax.") for mode in dispatch_stack())
    return _WHOLE_FOR_MODES if ours else None


# autograd of nested tensors does not decompose them, and gives them gradients for all devices
_WHOLE = DEVICE_KEYS | torch._C.DispatchKeySet(_lookup("_C.DispatchKey.AutogradNestedTensor"))
_WHOLE_FOR_MODES = _WHOLE | torch._C.DispatchKeySet(torch._C.DispatchKey.Python)


# The attributes of a tensor with the hooks that autograd has of it: each None or a dict.
HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"


# The hooks that all modules have, but for those before a call: an observer has one there.
_OF_ALL = "_global_forward_hooks", "_global_backward_hooks", "_global_backward_pre_hooks"
MODULE_HOOKS = [vars(torch.nn.modules.module).get(name, {}) for name in _OF_ALL]


def hooks_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the hooks that autograd has of a tensor, None or a dict, by the attribute's name."""
    return {name: getattr(tensor, name, None) for name in HOOKS}


def no_dispatch_modes() -> Any:
    """Return a context without any ``TorchDispatchMode``."""
    if not dispatch_modes():
        return contextlib.nullcontext()
    return importlib.import_module("torch.utils._python_dispatch")._disable_current_modes()


def no_autocast() -> Any:
    """Return a context in which this device's autocast changes nothing on this thread."""
    return _exclude_keys(AUTOCAST_KEYS)


context_decorator = _lookup("utils._contextlib.context_decorator")

# The keys of PyTorch's composites, in the order in which its dispatcher prefers them.
COMPOSITE_KEYS = [
    _lookup(f"_C.DispatchKey.Composite{kind}")
    for kind in ("ImplicitAutograd", "ExplicitAutograd", "ExplicitAutogradNonFunctional")
]


def call_on_cpu(op: Any, named: dict[str, Any]) -> Any:
    """Run the CPU's kernel of an overload on CPU tensors, below autograd and all modes."""
    positional = []
    rest = dict(named)
    for argument in op._schema.arguments:  # a name may be a keyword of Python: ``from``, ``self``
        if argument.kwarg_only or argument.name not in rest:
            break
        positional.append(rest.pop(argument.name))
    return op.redispatch(CPU_KEYS, *positional, **rest)


_number = torch.zeros((), device="cpu")


def is_accelerator() -> bool:
    """Return whether this device is PyTorch's accelerator."""
    found = torch.accelerator.current_accelerator()
    return found is not None and found.type == DEVICE_TYPE


def without_warnings(function: Callable[[], Any]) -> Any:
    """Return the result of a function, and drop its warnings.

    PyTorch keeps those of C++ until the last method called from Python returns, which would be the
    user's, or writes them on stderr where there is none: here it is ``apply_``.
    """
    results: list[Any] = []

    def called(number: float) -> float:
        results.append(function())
        return number

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _number.apply_(called)
    return results[0]


_script_name = _lookup("jit._builtins._find_builtin")
_script_as = _lookup("jit._builtins._register_builtin")


def script_as_well(functions: dict[Any, Any]) -> None:
    """Have TorchScript treat new functions as the operators of the old ones."""
    with contextlib.suppress(RuntimeError):
        for old, new in functions.items():
            if name := _script_name(old):
                _script_as(new, name)


current_graph_task: Any = getattr(torch._C, "_current_graph_task_id", lambda: -1)
dispatch_modes = _lookup("_C._len_torch_dispatch_stack")
function_modes = _lookup("_C._len_torch_function_stack")
dispatch_stack = _lookup("utils._python_dispatch._get_current_dispatch_mode_stack")
_function_stack = _lookup("overrides._get_current_function_mode_stack")


def default_device() -> Any:
    """Return the device of factory functions on this thread, if a mode sets one."""
    devices = [mode.device for mode in _open_function_modes() if _sets_device(mode)]
    return devices[-1] if devices else None


def _sets_device(mode: Any) -> bool:
    return isinstance(mode, importlib.import_module("torch.utils._device").DeviceContext)


def _open_function_modes() -> list[Any]:
    return _function_stack() if function_modes() else []


is_wrapped = _lookup("_C._functorch.is_functorch_wrapped_tensor")
_functorch_level = _lookup("_C._functorch.peek_interpreter_stack")
saved_tensors_hooks = _lookup("_C._autograd._top_saved_tensors_default_hooks")


def in_functional_transform() -> bool:
    """Return whether a transform of ``torch.func`` or forward-mode AD is open on this thread."""
    forward = sys.modules.get("torch.autograd.forward_ad")
    return _functorch_level() is not None or getattr(forward, "_current_level", -1) >= 0


def is_transformed() -> bool:
    """Return whether a mode, vmap or hooks on this thread see or change each operator."""
    if _functorch_level() is not None or saved_tensors_hooks(True) is not None:
        return True
    own = "torch_jax."  # modes that only observe
    modes = (*(dispatch_stack() if dispatch_modes() else ()), *_open_function_modes())
    return any(not _sets_device(m) and not type(m).__module__.startswith(own) for m in modes)


def kept_by_policy(context: Any) -> list[Any]:
    """Return the tensors that a context of ``create_selective_checkpoint_contexts`` keeps.

    Each has the tensor as ``val``, and its number of writes at that time as ``version``.
    """
    leaves = importlib.import_module("torch.utils._pytree").tree_leaves
    by_operator = getattr(context, "storage", None)
    if not isinstance(by_operator, dict):
        return []
    kept = leaves(list(by_operator.values()))
    return [one for one in kept if isinstance(getattr(one, "val", None), torch.Tensor)]


def factories() -> set[Callable[..., Any]]:
    """Return the functions that ``torch.set_default_device`` concerns."""
    return getattr(importlib.import_module("torch.utils._device"), "_device_constructors", set)()


def takers_of_devices() -> list[tuple[Any, str]]:
    """Return private places that take a device, as pairs of an owner and a name.

    They are the constructor of the mode that ``with torch.device(...)`` and ``set_default_device``
    enter, and the function that casts arguments under ``torch.amp.custom_fwd``.
    """
    context = importlib.import_module("torch.utils._device").DeviceContext
    return [(context, "__init__"), (importlib.import_module("torch.amp.autocast_mode"), "_cast")]


_set_versions = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)


def set_versions(tensors: list[torch.Tensor], versions: list[int]) -> None:
    """Set the numbers of writes of tensors, where PyTorch lets us."""
    if tensors and _set_versions is not None:
        _set_versions(tuple(tensors), tuple(versions))


def versions_kept() -> Any:
    """Return a context in which writes do not raise versions."""
    return _exclude_keys(torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView))


def holds_checkpoint(writer: Any) -> bool:
    """Return whether a writer of ``torch.distributed.checkpoint`` is about to write over one."""
    exists = getattr(writer, "_metadata_exists", None)
    return exists is not None and exists()


def recursive_wrap(*args: Any, **kwargs: Any) -> Any:
    """Wrap the parts of a module that a policy chooses (``torch.distributed.fsdp.wrap``)."""
    return importlib.import_module("torch.distributed.fsdp.wrap")._recursive_wrap(*args, **kwargs)


def set_scripted(module: Any, name: str, value: Any) -> None:
    """Set a parameter or an attribute of a module of TorchScript, which C++ keeps."""
    module._c.setattr(name, value)


def tell_size(tensor: torch.Tensor) -> None:
    """Set the size of a tensor's storage that C++ knows, for files that it writes."""
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        META_KEYS, tensor.detach(), tensor.untyped_storage(), 0, tensor.shape, tensor.stride()
    )


def scripted_weights(module: Any) -> list[Any]:
    """Return the second list of parameters of a recurrent module of TorchScript."""
    return module._flat_weights if module._c.hasattr("_flat_weights") else []


def has_cuda() -> bool:
    """Return whether a CUDA device is there, also where ``"cuda"`` means this device."""
    return getattr(torch._C, "_cuda_getDeviceCount", int)() > 0
