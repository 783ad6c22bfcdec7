"""Which functions written in C, and which of libraries, a proven function may call.

Such a function gives the same for the same arguments, and changes nothing but what a trace notes:
plain containers, and tensors. Of anything else the function cannot be skipped.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from types import CodeType
from typing import Any

import torch

from torch_jax.capture.state.bytecode import LIBRARIES, STDLIB, TORCH

_BUILTINS = frozenset(
    """abs all any ascii bin callable chr delattr divmod format getattr hasattr hex isinstance
    issubclass iter len max min next oct ord pow repr round setattr sorted sum""".split()
)
_PURE_MODULES = frozenset(("math", "_operator", "cmath"))
_FUNCTIONS = frozenset((("_functools", "reduce"), ("_abc", "_abc_instancecheck")))
CONTAINERS = (list, dict, set, frozenset, tuple, deque, OrderedDict, defaultdict)
_VALUES = (int, float, complex, bool, str, bytes, range, slice, types.NoneType)
_OWNERS = frozenset((*CONTAINERS, *_VALUES, types.GeneratorType))
# Of the iterators that a function makes itself: those that it was given are not understood at all.
_ITERATORS = ("_iterator", "iterator", "generator")

# Methods of tensors, and functions of PyTorch's C++, that look at or change more than elements.
_TORCH_DENIED = frozenset(
    """numpy __array__ data_ptr untyped_storage storage storage_offset as_strided set_ resize_
    share_memory_ is_shared pin_memory retain_grad register_hook __reduce_ex__ __setstate__
    record_stream _make_subclass _make_wrapper_subclass as_subclass from_file
    set_default_dtype _set_default_dtype set_num_threads
    set_float32_matmul_precision _set_float32_matmul_precision _get_cublas_allow_tf32
    _set_cublas_allow_tf32 _get_cudnn_allow_tf32 _set_cudnn_allow_tf32
    _get_fp32_precision_getter _set_fp32_precision_setter
    is_anomaly_enabled is_anomaly_check_nan_enabled get_num_threads get_num_interop_threads
    is_warn_always_enabled
    from_numpy frombuffer from_buffer _version _is_view
    requires_grad_ detach_""".split()
)
# Of those, what is right for a tensor that this very call made.
_TORCH_OWN = frozenset(("requires_grad_", "detach_"))

# PyTorch's Python, as far as it is known: from a user's code these files may be called.
_KNOWN_IN_TORCH = tuple(
    TORCH + part
    for part in (
        "nn/", "optim/", "functional.py", "_tensor.py", "autograd/", "amp/", "cuda/amp/",
        "utils/_contextlib.py", "utils/checkpoint.py", "utils/_pytree.py", "distributions/",
        "_jit_internal.py", "random.py", "overrides.py", "_ops.py", "special/", "linalg/", "fft/",
        "func/", "_functorch/", "_higher_order_ops/", "_lobpcg.py",
        "_linalg_utils.py", "__init__.py", "utils/_device.py", "_prims", "_refs", "_decomp",
        "utils/_python_dispatch.py", "_VF.py", "_classes.py", "_C", "utils/_foreach_utils.py",
        "compiler/", "jit/__init__.py", "jit/_trace.py", "jit/_script.py", "_dynamo/", "library",
        "_library", "fx/experimental/sym_node.py", "_lowrank.py", "types.py", "_utils.py",
        "_opaque_base.py", "_compile.py",
    )
)  # fmt: skip
# Of ``torch.distributed``, what takes and gives tensors of the device, and what asks who this
# process is. Process groups refuse what is no part of a program (``distributed.process_group``).
_COLLECTIVES = frozenset(
    """all_reduce all_gather all_gather_into_tensor all_gather_single reduce_scatter
    reduce_scatter_tensor reduce_scatter_single broadcast all_to_all all_to_all_single reduce
    all_reduce_coalesced all_gather_coalesced get_rank get_world_size get_backend is_initialized
    is_available WORLD get_global_rank get_group_rank get_process_group_ranks""".split()
)
_WITH_COLLECTIVES = tuple(
    TORCH + "distributed/" + part
    for part in ("_functional_collectives.py", "nn/functional.py", "__init__.py", "utils.py")
)
_C10D, _LOGGED = TORCH + "distributed/distributed_c10d.py", TORCH + "distributed/c10d_logger.py"
_WORK = frozenset(("wait", "is_completed", "is_success", "synchronize"))
_DISTRIBUTED = frozenset(
    """DistributedDataParallel Joinable ProcessGroup ReduceOp RedOpType Work Reducer
    Logger""".split()
)
# Of ``DistributedDataParallel``, what changes how later calls go.
_SPREAD = TORCH + "nn/parallel/"
_DENIED_IN_DDP = frozenset(
    """__init__ join register_comm_hook _register_buffer_comm_hook _register_builtin_comm_hook
    _register_fused_optim _set_static_graph _update_process_group scatter gather""".split()
)
_DENIED_IN_TORCH = frozenset(
    """register_buffer register_parameter register_module add_module load_state_dict _apply
    requires_grad_ register_hook register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_full_backward_pre_hook register_backward_hook
    register_state_dict_post_hook register_post_accumulate_grad_hook share_memory share_memory_
    storage __array__ __reduce_ex__ __setstate__ __deepcopy__ __repr__ __format__ __dlpack__
    add_param_group set_extra_state compile register_module_forward_hook
    register_module_forward_pre_hook storage_type""".split()
)
# Of Python's own library.
_KNOWN_IN_STDLIB = frozenset(
    (
        # what objects that die call, wherever that happens
        ("weakref.py", "WeakKeyDictionary.__init__.<locals>.remove"),
        ("weakref.py", "WeakValueDictionary.__init__.<locals>.remove"),
        ("_weakrefset.py", "WeakSet.__init__.<locals>._remove"),
        ("contextlib.py", "contextmanager.<locals>.helper"),
        ("contextlib.py", "_GeneratorContextManagerBase.__init__"),
        ("contextlib.py", "_GeneratorContextManager.__enter__"),
        ("contextlib.py", "_GeneratorContextManager.__exit__"),
        ("contextlib.py", "nullcontext.__init__"),
        ("contextlib.py", "nullcontext.__enter__"),
        ("contextlib.py", "nullcontext.__exit__"),
        ("os.py", "_Environ.__getitem__"),
        ("os.py", "getenv"),
        ("inspect.py", "signature"),  # of functions, whose code and defaults are noted
        ("inspect.py", "Signature.parameters"),
        ("inspect.py", "Parameter.name"),
        ("inspect.py", "Parameter.kind"),
        ("inspect.py", "Parameter.default"),
        ("functools.py", "wraps"),
        ("functools.py", "update_wrapper"),
        ("types.py", "DynamicClassAttribute.__get__"),
        ("typing.py", "cast"),
        ("<frozen _collections_abc>", "Sequence.__iter__"),
        ("<frozen importlib._bootstrap>", "_handle_fromlist"),
        # a user's own mapping, whose ``__getitem__`` and the like are seen
        *(
            ("<frozen _collections_abc>", f"Mapping.{name}")
            for name in ("get", "__contains__", "keys", "items", "values", "__eq__")
        ),
        *(
            ("<frozen _collections_abc>", f"{kind}View.{name}")
            for kind in ("Keys", "Items", "Values", "Mapping")
            for name in ("__init__", "__iter__", "__contains__", "__len__")
        ),
        ("typing.py", "Generic.__init_subclass__"),
        ("<frozen abc>", "ABCMeta.__instancecheck__"),
        ("<frozen abc>", "ABCMeta.__subclasscheck__"),
        ("abc.py", "ABCMeta.__instancecheck__"),
        ("abc.py", "ABCMeta.__subclasscheck__"),
    )
)


def is_known_builtin(function: Any) -> bool:
    """Whether a function of C is understood.

    >>> import time, math
    >>> is_known_builtin(math.sqrt), is_known_builtin([].append), is_known_builtin(time.time)
    (True, True, False)
    """
    name, owner = getattr(function, "__name__", ""), owner_of(function)
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        return _is_known_method(function.__objclass__, name)
    if owner is None or isinstance(owner, types.ModuleType):
        return _is_known_function(str(getattr(function, "__module__", None)), name)
    if isinstance(owner, type):
        if name == "__new__" and issubclass(owner, torch.Tensor | torch._C.TensorBase):
            return False
        return owner in _OWNERS or _is_torchs(owner) or (owner is object and name == "__new__")
    return _is_known_method(type(owner), name)


def owner_of(function: Any) -> Any:
    """What a function of C is a method of: a module, a class, an object, or None."""
    owner = getattr(function, "__self__", None)
    is_record = type(owner).__module__ == "pybind11_builtins"  # as each function of pybind11's has
    return None if is_record else owner


def _is_known_function(module: str, name: str) -> bool:
    if module == "builtins":
        return name in _BUILTINS
    if module in _PURE_MODULES or (module, name) in _FUNCTIONS:
        return True
    return _is_torchs_module(module) and name not in _TORCH_DENIED


def _is_known_method(owner: type, name: str) -> bool:
    if owner in _OWNERS or owner.__name__.endswith(_ITERATORS):
        return owner.__module__ in ("builtins", "collections")
    if "distributed" in str(owner.__module__):
        return name in _WORK
    return _is_torchs(owner) and name not in _TORCH_DENIED


def called_by_logger(code: CodeType, local: Mapping[str, Any]) -> CodeType:
    """What code calls that logs errors of functions of ``torch.distributed``; else the code."""
    function = local.get("func") if code.co_filename == _LOGGED else None
    return getattr(function, "__code__", code)


def is_for_own_tensors(function: Any) -> bool:
    """Whether a method of PyTorch's may be called of tensors only that the call itself made."""
    return getattr(function, "__name__", "") in _TORCH_OWN


def _is_torchs(owner: type) -> bool:
    return any(_is_from_torch(base) for base in owner.__mro__)


@functools.cache
def _is_from_torch(kind: type) -> bool:
    module = str(kind.__module__)
    if module.partition(".")[0] == "torch" and "distributed" in module:
        return kind.__name__ in _DISTRIBUTED
    return module.partition(".")[0] in ("torch", "torch_jax")


def _is_torchs_module(module: str) -> bool:
    """Whether a module is PyTorch's, but for what changes other processes, or waits for them."""
    return module.partition(".")[0] == "torch" and "distributed" not in module


@functools.cache
def is_known_code(code: CodeType) -> bool:
    """Whether the Python of a library may be called by a user's code without being looked at."""
    file, name = code.co_filename, code.co_qualname
    if file.startswith(TORCH):
        if file == _C10D:
            return code.co_name in _COLLECTIVES
        if file.startswith(_SPREAD):
            return file.endswith("/distributed.py") and code.co_name not in _DENIED_IN_DDP
        if file.startswith(TORCH + "onnx/"):
            return code.co_name == "is_in_onnx_export"
        known = file.startswith((*_KNOWN_IN_TORCH, *_WITH_COLLECTIVES))
        return known and code.co_name not in _DENIED_IN_TORCH
    if file.startswith(LIBRARIES):
        return file.startswith(LIBRARIES[-1])  # torch_jax; not JAX and NumPy
    if file.endswith((*_KNOWN_FILES, "typing_extensions.py")):
        return True
    if any(folder in file for folder in _KNOWN_FOLDERS):
        return True
    return (file.removeprefix(STDLIB), name) in _KNOWN_IN_STDLIB


_KNOWN_FILES = (
    "/enum.py",
    "/transformers/configuration_utils.py",
    "/huggingface_hub/dataclasses.py",  # of these configurations
)
_KNOWN_FOLDERS = ("/transformers/integrations/heterogeneity/", "/transformers/utils/")


# What reads all tensors of a module, by no names that its caller mentions.
READERS_OF_MODULES = frozenset(
    """parameters named_parameters buffers named_buffers modules named_modules children
    named_children state_dict apply train eval zero_grad""".split()
)


def is_reader_of_modules(code: CodeType) -> bool:
    """Whether code is a method that looks through all submodules of a module."""
    return code.co_name in READERS_OF_MODULES and code.co_filename == _MODULE_FILE


def is_functional_call(code: CodeType) -> bool:
    """Whether code puts tensors that it is given in place of a module's, and these back."""
    return code.co_name == "_reparametrize_module" and code.co_filename.endswith("/stateless.py")


_MODULE_FILE = torch.nn.Module.parameters.__code__.co_filename
