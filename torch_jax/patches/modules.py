"""Modules: those that move to the device keep their parameters; masks are not looked at."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_FIRST_USE, AT_IMPORT, around, patch

_JAX = pytorch.DEVICE_TYPE


@around("torch.nn.Module._apply", AT_IMPORT)
def _patch_apply(original: Any, self: Any, fn: Any, recurse: bool = True) -> Any:
    """``module.to("jax")`` must keep its Parameter objects, as it does between other devices.

    PyTorch assigns ``param.data`` where two devices' tensors are compatible, and else makes new
    Parameters – which unties tied weights and orphans optimizers. So a parameter that goes to
    or comes from jax the tensors are swapped before PyTorch looks.
    """
    if not isinstance(fn, _Crossing):
        fn = _Crossing(fn)
    if is_scripted := isinstance(self, torch.jit.RecursiveScriptModule):
        _move_scripted(self, fn.fn)
    moved = original(self, fn, recurse)
    for tensor in (*self.parameters(), *self.buffers()) if is_scripted else ():
        if tensor.device.type == _JAX:
            pytorch.tell_size(tensor)
    return moved


def _crosses(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether exactly one of two tensors is on device jax."""
    return a is not b and (a.device.type == _JAX) != (b.device.type == _JAX)


def _move_scripted(module: Any, fn: Any) -> None:
    """Put new parameters where C++ keeps those of TorchScript, and where RNNs list them."""
    moved: dict[int, torch.Tensor] = {}
    for name, parameter in list(module._parameters.items()):
        with torch.no_grad():
            new = fn(parameter)
        if _crosses(parameter, new):
            new = new.detach().requires_grad_(parameter.requires_grad)
            moved[id(parameter)] = new
            listed = pytorch.scripted_weights(module)
            pytorch.set_scripted(module, name, new)
            if listed:
                weights = [moved.get(id(weight), weight) for weight in listed]
                pytorch.set_scripted(module, "_flat_weights", weights)


class _Crossing:
    """A conversion that keeps the identity of parameters that change to or from device jax."""

    def __init__(self, fn: Any):
        self.fn = fn

    def __call__(self, tensor: torch.Tensor) -> Any:
        if is_lazy(tensor):
            return self._lazy(tensor)
        result = self.fn(tensor)
        if is_traceable_wrapper_subclass(result):
            return result  # PyTorch swaps wrappers, such as DTensor, with all that they hold
        if not isinstance(tensor, torch.nn.Parameter) or not _crosses(tensor, result):
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
        """Return a lazy module's parameter or buffer, without a shape yet, on its new device."""
        like = self.fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        kind: Any = type(tensor)
        moved = kind(tensor.requires_grad, device=like.device, dtype=like.dtype)
        if isinstance(tensor, torch.nn.Parameter) and _crosses(tensor, moved):
            pytorch.swap_tensor_impl(tensor, moved)
            return tensor
        return moved


def _swap(tensor: torch.Tensor, moved: torch.Tensor) -> None:
    """Give ``tensor``, the same Python object, the value and device of ``moved``.

    ``torch.utils.swap_tensors`` refuses while a graph or a weak reference holds the tensor. Both
    are harmless here: the graph keeps the values it saved, and a weak reference the object. Only a
    gradient of that graph would be lost, so its backward raises. Autograd keeps the hooks of a
    tensor beside the memory, and is given them once more.
    """
    hooks = pytorch.hooks_of(tensor)
    if tensor.requires_grad and tensor.is_leaf and not tensor.is_inference():
        with torch.inference_mode(False), torch.enable_grad():  # without, PyTorch makes no edge
            edge = torch.autograd.graph.get_gradient_edge(tensor)
        edge.node.register_prehook(_moved_since)
    pytorch.swap_tensor_impl(tensor, moved)
    for name, known in hooks.items():
        if known is not None:
            setattr(tensor, name, known)


def _moved_since(_gradients: Any) -> Any:
    raise RuntimeError(
        "backward through a graph that was made before its parameters moved to or from device "
        "'jax': move the module first, then run forward and backward"
    )


@patch("torch.nn.modules.transformer._detect_is_causal_mask", AT_IMPORT)
def _patch_causal_masks(original: Any) -> Any:
    """``nn.TransformerEncoder`` reads its mask, only to choose a kernel: a read ends a program.

    A mask that is read has no such choice under ``jit``, ``torch.compile`` or ``vmap``, and on
    accelerators the host waits for it. Callers who know that it is causal say ``is_causal=True``.
    """

    def detect(  # TorchScript compiles it, and so the name of the device is written out
        mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
    ) -> bool:
        if is_causal is None and mask is not None and mask.device.type == "jax":
            return False
        return original(mask, is_causal, size)

    return detect


@around("torch.nn.functional.gaussian_nll_loss", AT_IMPORT)
def _patch_gaussian_nll_loss(original: Any, *args: Any, **kwargs: Any) -> Any:
    """A look whether variances are negative ends a recording, and waits for an accelerator."""
    var = kwargs.get("var", args[2] if len(args) > 2 else None)
    is_ours = isinstance(var, torch.Tensor) and var.device.type == _JAX
    if torch.compiler.is_compiling() or not is_ours:
        return original(*args, **kwargs)
    from torch_jax.dispatch.truths import answered

    with answered(False, "var has negative entry/entries", ValueError):
        return original(*args, **kwargs)


@patch("torch.Tensor.data", AT_FIRST_USE)
def _patch_data(descriptor: Any) -> Any:
    """``param.data = t`` across devices raises "incompatible tensor type" in C++: swap them."""

    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        if not (isinstance(value, torch.Tensor) and _crosses(self, value)):
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

    return property(descriptor.__get__, set_data, descriptor.__delete__)


@around(
    "torch.nn.modules.linear_cross_entropy_options.LinearCrossEntropyOptions._adjust",
    AT_IMPORT,
    "torch 2.13",
)
def _patch_chunked_losses(original: Any, self: Any, device: Any = None, **sizes: Any) -> Any:
    """Chunks of a loss of half types are summed in float32 on the CPU and on CUDA alone."""
    is_ours = device is not None and device.type == _JAX
    return original(self, **sizes, device=torch.device("cpu") if is_ours else device)
