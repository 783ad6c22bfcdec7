"""What a device registered from Python cannot do without reaching into PyTorch, in one place.

Each patch leaves the behaviour for every other device exactly as it was: it first asks whether a
jax tensor is concerned. :func:`install_light` runs at ``import torch``; :func:`install`, with what
costs other devices a little, when the jax device is first used.
"""

from __future__ import annotations

import functools
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from torch_jax._private import pytorch
from torch_jax.device import device_module as module
from torch_jax.device import streams
from torch_jax.memory.generators import Generator
from torch_jax.patches import imports

_JAX = pytorch.DEVICE_TYPE

# the classes that are patched; typed Any, since a type checker is right to object
_tensor_class: Any = torch.Tensor
_storage_class: Any = torch.UntypedStorage
_module_class: Any = torch.nn.Module


def install_light() -> None:
    """Patches that must be there before the device is first used."""
    _patch_untyped_storage()
    _patch_generator()
    _patch_module_apply()
    _patch_accelerator()
    _patch_pin_memory()
    streams.install()
    imports.install()


def install() -> None:
    """Patches that only matter once there are jax tensors."""
    from torch_jax.patches import storages

    storages.install()
    _patch_data_ptr()
    _patch_data_setter()
    _patch_printing()
    _patch_autocast_cache()
    _patch_default_backend()
    _patch_multiprocessing()


def _names_jax(device: Any) -> bool:
    return device is not None and torch.device(device).type == _JAX


def _patch_untyped_storage() -> None:
    """``torch.UntypedStorage(n, device="jax")`` asks C++ for an allocator there is not: segfault.

    ``torch.load``, ``Storage.to`` and ``copy.deepcopy`` all come this way.
    """
    original = torch.UntypedStorage.__new__

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        if not _names_jax(kwargs.get("device")):
            return original(cls, *args, **kwargs)
        size = args[0] if args else kwargs.get("size", 0)
        if not isinstance(size, int):
            return original(cls, *args).to(kwargs["device"])
        return torch.empty(size, dtype=torch.uint8, device=_JAX).untyped_storage()

    _storage_class.__new__ = __new__


def _patch_generator() -> None:
    """``torch.Generator(device="jax")`` needs a hook in C++: :mod:`torch_jax.memory.generators`."""
    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    torch.Generator = Generator  # type: ignore[misc]


def _patch_module_apply() -> None:
    """``module.to("jax")`` must keep its Parameter objects, as it does between other devices.

    PyTorch assigns ``param.data`` where two devices' tensors are compatible, and else makes new
    Parameters – which unties tied weights and orphans optimizers. So for a parameter that goes to
    or comes from jax the tensors are swapped before PyTorch looks.
    """
    original = torch.nn.Module._apply

    @functools.wraps(original)
    def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        if not isinstance(fn, _Crossing):
            fn = _Crossing(fn)
        return original(self, fn, recurse)

    _module_class._apply = _apply


class _Crossing:
    """A conversion that keeps the identity of parameters that change to or from device jax."""

    def __init__(self, fn: Any):
        self.fn = fn

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_lazy(tensor):
            return self._lazy(tensor)
        result = self.fn(tensor)
        if not isinstance(tensor, torch.nn.Parameter) or not crosses(tensor, result):
            return result
        grad = tensor.grad
        moved = torch.nn.Parameter(result.detach(), tensor.requires_grad)
        if grad is not None:
            moved_grad = self.fn(grad).detach().requires_grad_(grad.requires_grad)
            tensor.grad = None
            _swap(grad, moved_grad)
        _swap(tensor, moved)
        tensor.grad = grad
        return tensor

    def _lazy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A parameter or buffer of a lazy module has no shape yet: only where it will be made."""
        like = self.fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        kind: Any = type(tensor)
        moved = kind(tensor.requires_grad, device=like.device, dtype=like.dtype)
        if isinstance(tensor, torch.nn.Parameter) and crosses(tensor, moved):
            pytorch.swap_tensor_impl(tensor, moved)
            return tensor
        return moved


def crosses(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether exactly one of two tensors is on device jax."""
    return a is not b and (a.device.type == _JAX) != (b.device.type == _JAX)


def _swap(tensor: torch.Tensor, moved: torch.Tensor) -> None:
    """Make ``tensor``, the same Python object, what ``moved`` is.

    ``torch.utils.swap_tensors`` refuses while a graph or a weak reference holds the tensor. Both
    are harmless here: the graph keeps the values it saved, and a weak reference the object. Only a
    gradient of that graph would be lost, so its backward raises.
    """
    if tensor.requires_grad and tensor.is_leaf and not tensor.is_inference():
        with torch.inference_mode(False), torch.enable_grad():  # without, PyTorch makes no edge
            edge = torch.autograd.graph.get_gradient_edge(tensor)
        edge.node.register_prehook(_moved_since)
    pytorch.swap_tensor_impl(tensor, moved)


def _moved_since(_gradients: Any) -> Any:
    raise RuntimeError(
        "backward through a graph that was made before its parameters moved to or from device "
        "'jax': move the module first, then run forward and backward"
    )


def _patch_data_setter() -> None:
    """``param.data = t`` across devices raises "incompatible tensor type" in C++: swap instead."""
    descriptor = pytorch.TensorBase.data

    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        if not (isinstance(value, torch.Tensor) and crosses(self, value)):
            descriptor.__set__(self, value)
            return
        if self.grad_fn is not None:
            raise RuntimeError(
                "cannot assign .data from another device to a tensor that autograd made"
            )
        grad, flag = self.grad, self.requires_grad
        cls = type(self)
        moved = value.detach()
        if cls is torch.nn.Parameter:
            moved = torch.nn.Parameter(moved, flag)
        else:
            moved.requires_grad_(flag)
        _swap(self, moved)
        if grad is not None and grad.device == self.device:
            self.grad = grad

    _tensor_class.data = property(descriptor.__get__, set_data, descriptor.__delete__)


def _patch_data_ptr() -> None:
    """``data_ptr()`` is 0 in C++ for every jax tensor; code tells storages apart by it."""
    original = pytorch.TensorBase.data_ptr

    @functools.wraps(original)
    def data_ptr(self: Any) -> int:
        if self.is_cpu or self.device.type != _JAX:
            return original(self)
        base = self.untyped_storage().data_ptr()
        return base and base + self.storage_offset() * self.element_size()

    _tensor_class.data_ptr = data_ptr


def _patch_accelerator() -> None:
    """``torch.accelerator`` asserts in C++ for Python devices: ask ``torch.jax`` instead."""
    answers = {
        "synchronize": module.synchronize,
        "empty_cache": module.empty_cache,
        "memory_stats": module.memory_stats,
        "memory_allocated": module.memory_allocated,
        "max_memory_allocated": module.max_memory_allocated,
        "memory_reserved": module.memory_reserved,
        "max_memory_reserved": module.max_memory_reserved,
        "reset_peak_memory_stats": module.reset_peak_memory_stats,
        "reset_accumulated_memory_stats": module.reset_accumulated_memory_stats,
        "get_memory_info": module.mem_get_info,
        "get_device_capability": module.get_device_capability,
        "current_stream": module.current_stream,
        "set_stream": module.set_stream,
        "current_device_index": module.current_device,
        "set_device_index": module.set_device,
    }
    for name, answer in answers.items():
        original = getattr(torch.accelerator, name, None)
        if original is not None:
            setattr(torch.accelerator, name, _answer(original, answer))


def _answer(original: Any, answer: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and accelerator.type == _JAX:
            return answer(*args, **kwargs)
        return original(*args, **kwargs)

    return call


def _patch_printing() -> None:
    """Tensors are printed from a copy on the CPU: formatting is dozens of tiny operators.

    Under a trace the error comes first: raised further down, it would keep functorch disabled for
    as long as its traceback lives.
    """
    module = torch._tensor_str
    original, contents = module._str, module._tensor_str

    def _str(self: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        from torch_jax.core import tracers
        from torch_jax.memory import storage

        memory = storage.memory_if_any(self)
        if tracers.is_traced(memory):
            raise tracers.needs_value_on_host(memory)
        return original(self, *args, **kwargs)

    def _tensor_str(self: torch.Tensor, indent: int) -> str:
        return contents(self.cpu() if self.device.type == pytorch.DEVICE_TYPE else self, indent)

    module._str, module._tensor_str = _str, _tensor_str


def _patch_autocast_cache() -> None:
    """Cast weights are kept until ``torch.autocast`` clears PyTorch's cache, which is in C++."""
    from torch_jax.dispatch import autocast

    original = getattr(torch, "clear_autocast_cache", None)
    if original is None:
        return

    @functools.wraps(original)
    def clear_autocast_cache() -> None:
        autocast.clear_cache()
        original()

    torch.clear_autocast_cache = clear_autocast_cache


def _patch_default_backend() -> None:
    """``torch.compile`` without a backend takes inductor, which does not know the device."""
    kind: Any = getattr(torch, "_TorchCompileInductorWrapper", None)
    if kind is None:
        return
    original = kind.__call__

    @functools.wraps(original)
    def call(self: Any, graph: Any, inputs: Any, **kwargs: Any) -> Any:
        from torch_jax.graphs import backend

        if not backend.concerns(graph, inputs):
            return original(self, graph, inputs, **kwargs)
        return backend.in_place_of_inductor(graph, inputs)

    kind.__call__ = call


def _patch_multiprocessing() -> None:
    """Tensors go to other processes by value: there is no memory here that two could share."""
    reductions = torch.multiprocessing.reductions
    of_tensor = _for_jax(_send_tensor, reductions.reduce_tensor)
    ForkingPickler.register(torch.Tensor, of_tensor)
    ForkingPickler.register(torch.nn.Parameter, of_tensor)
    of_storage = _for_jax(_send_storage, reductions.reduce_storage)
    ForkingPickler.register(torch.UntypedStorage, of_storage)


def _for_jax(ours: Any, theirs: Any) -> Any:
    def reduce(value: Any) -> Any:
        return (ours if value.device.type == _JAX else theirs)(value)

    return reduce


def _send_tensor(tensor: torch.Tensor) -> Any:
    if tensor.requires_grad and not tensor.is_leaf:
        return torch.multiprocessing.reductions.reduce_tensor(tensor)  # which raises
    return tensor.__reduce_ex__(2)


def _send_storage(storage: torch.UntypedStorage) -> Any:
    """The bytes, once however many tensors of one message share them."""
    host = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu())
    return _receive_storage, (host.numpy(),)


def _receive_storage(data: Any) -> torch.UntypedStorage:
    return torch.from_numpy(data).to(_JAX).untyped_storage()


def _patch_pin_memory() -> None:
    """Pinned memory has no allocator here, and XLA does not need it: a no-op, said once."""
    original = torch.Tensor.pin_memory

    @functools.wraps(original)
    def pin_memory(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or accelerator.type != _JAX or self.device.type != "cpu":
            return original(self, *args, **kwargs)
        _warn_pin_memory()
        return self

    _tensor_class.pin_memory = pin_memory


@functools.cache
def _warn_pin_memory() -> None:
    warnings.warn(
        "pin_memory does nothing on device 'jax': XLA copies from ordinary host memory.",
        stacklevel=4,
    )
