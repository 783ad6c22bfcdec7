"""``torchax.interop``: values and functions of JAX as PyTorch's, and the other way round.

``torch_view`` and ``jax_view`` convert values as ``torch_jax.from_jax`` and ``to_jax`` do, and
functions as ``from_jax_function`` and ``to_jax_function`` do, with two differences. A JAX function
is called directly, not compiled, and gradients of PyTorch's do not flow through it:
:func:`j2t_autograd` lets them. A function under :func:`jax_jit` draws its random numbers from a
key that every call passes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from torch_jax._private import pytorch
from torch_jax.capture.jit import jit
from torch_jax.compat.ax import draws
from torch_jax.compat.ax.environment import array_of, default_env, is_narrow, tensor_of
from torch_jax.core import trees
from torch_jax.core.active import ACTIVE
from torch_jax.core.x64 import x64_as
from torch_jax.graphs.interpreter import prepare
from torch_jax.graphs.runner import first_names
from torch_jax.interop import names
from torch_jax.interop.from_jax import from_jax_function
from torch_jax.interop.functional import SWAPPING
from torch_jax.memory import dtypes


def torch_view(value: Any) -> Any:
    """Return values of JAX's as PyTorch's, in trees: arrays, dtypes, functions of arrays."""
    return trees.map(torch_view_elem, value)


def jax_view(value: Any) -> Any:
    """Return values of PyTorch's as JAX's, in trees: tensors, dtypes, functions of tensors."""
    return trees.map(jax_view_elem, value)


def torch_view_elem(value: Any) -> Any:
    """Return a value of JAX's as PyTorch's, if it is an array, dtype or function."""
    if isinstance(value, jax.Array):
        return tensor_of(value)
    if isinstance(value, np.dtype):
        return dtypes.to_torch(value)
    return functools.partial(call_jax, value) if _is_function(value) else value


def jax_view_elem(value: Any) -> Any:
    """Return a value of PyTorch's as JAX's, if it is a tensor, dtype or function."""
    if isinstance(value, torch.Tensor):
        return array_of(value)
    if isinstance(value, torch.dtype):
        return dtypes.to_jax(value)
    return of_arrays(value) if _is_function(value) else value


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, nn.Module)


# --- functions ------------------------------------------------------------------------------------

# Functions that call another many times and trace it once: a key from outside would never change.
_LOOPS = (jax.lax.scan, jax.lax.fori_loop, jax.lax.while_loop, jax.lax.map)


def call_jax(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a JAX function with tensors as arrays, and return its arrays as tensors.

    No gradient of PyTorch's flows through it: for gradients use :func:`j2t_autograd` or
    ``torch_jax.call_jax``.
    """

    def view(value: Any) -> Any:
        in_loop = function in _LOOPS and _is_function(value)
        return of_arrays(value, lambda: None) if in_loop else jax_view_elem(value)

    with x64_as(not is_narrow()):
        args, kwargs = trees.map(view, (args, kwargs))
        return torch_view(function(*args, **kwargs))


def call_torch(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of tensors with arrays, and return its tensors as arrays.

    JAX may differentiate, map and compile it: ``detach`` and ``no_grad`` stop its gradients.
    """
    return of_arrays(function)(*args, **kwargs)


def of_arrays(function: Any, words: Callable[[], Any] = draws.next_words) -> Callable[..., Any]:
    """Return a function of tensors as one of arrays, which draws from the result of ``words``."""
    prepare()

    def call(*args: Any, **kwargs: Any) -> Any:
        narrow = is_narrow()
        with draws.program(words(), function):
            args, kwargs = trees.map(functools.partial(_argument, narrow), (args, kwargs))
            return jax_view(function(*args, **kwargs))

    return functools.update_wrapper(call, function, updated=())


def _argument(narrow: bool, value: Any) -> Any:
    """Return an argument as PyTorch's; JAX's integers become int64, PyTorch's type of indices."""
    value = torch_view_elem(value)
    if not isinstance(value, torch.Tensor):
        return value
    value = value.long() if narrow and value.dtype == torch.int32 else value
    return ACTIVE.tracer.mode.adopt(value)


# --- under jax.jit --------------------------------------------------------------------------------


def jitted(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return a function of tensors under ``jax.jit``, which gets the key words of each call.

    They come before the other arguments.
    """
    prepare()

    def program(words: Any, *args: Any, **kwargs: Any) -> Any:
        return of_arrays(function, lambda: words)(*args, **kwargs)

    functools.update_wrapper(program, function, updated=())
    program.__signature__ = _after_words(function)  # type: ignore[attr-defined]
    compiled = jax.jit(program, **{name: _moved(name, value) for name, value in options.items()})

    def call(*args: Any, **kwargs: Any) -> Any:
        words = draws.next_words()
        return call_jax(compiled, _ZEROS if words is None else words, *args, **kwargs)

    return functools.update_wrapper(call, function, updated=())


_ZEROS = np.zeros(4, np.uint32)


def _after_words(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature with an argument before the others, for ``static_argnames``."""
    words = inspect.Parameter("words", inspect.Parameter.POSITIONAL_ONLY)
    try:
        given = inspect.signature(function)
    except (TypeError, ValueError):
        given = inspect.signature(lambda *args, **kwargs: None)
    return given.replace(parameters=[words, *given.parameters.values()])


def _moved(name: str, value: Any) -> Any:
    """Return an option of ``jax.jit`` for the arguments one place further on."""
    if name.endswith("_argnums"):
        numbers = (value,) if isinstance(value, int) else value or ()
        return tuple(number + 1 if number >= 0 else number for number in numbers)
    if name == "in_shardings" and isinstance(value, tuple | list):
        return (None, *value)
    return value


# --- transformations ------------------------------------------------------------------------------

shard_map = jax.shard_map


def j2t_autograd(function: Callable[..., Any], call_jax: Any = None) -> Callable[..., Any]:
    """Return a JAX function as one of tensors, through which PyTorch's gradients flow."""
    return from_jax_function(function)


def wrap_jax_jit(
    torch_function: Callable[..., Any],
    jax_jit_func: Callable[..., Any] = jax.jit,
    kwargs_for_jax: dict[str, Any] | None = None,
) -> Any:
    """Return a function of tensors under a transformation of JAX's, as a function of tensors."""
    options = dict(kwargs_for_jax or {})
    if jax_jit_func is jax.jit:
        return jitted(torch_function, options)
    return torch_view(jax_jit_func(of_arrays(torch_function), **options))


def jax_jit(
    torch_function: Callable[..., Any],
    kwargs_for_jax_jit: dict[str, Any] | None = None,
    fix_for_buffer_donation: bool = False,
) -> Any:
    """Return a function of tensors under ``jax.jit``: one program, which JAX differentiates.

    Random operators draw other numbers at each call, from PyTorch's generator of the device.
    """
    return wrap_jax_jit(torch_function, jax.jit, kwargs_for_jax_jit)


def jax_shard_map(
    torch_function: Callable[..., Any], kwargs_for_jax_shard_map: dict[str, Any] | None = None
) -> Any:
    """Return a function of tensors under ``jax.shard_map``."""
    return wrap_jax_jit(torch_function, shard_map, kwargs_for_jax_shard_map)


def jax_value_and_grad(
    torch_function: Callable[..., Any], kwargs_for_value_and_grad: dict[str, Any] | None = None
) -> Any:
    """Return a function of tensors under ``jax.value_and_grad``."""
    return wrap_jax_jit(torch_function, jax.value_and_grad, kwargs_for_value_and_grad)


def gradient_checkpoint(
    torch_function: Callable[..., Any], kwargs: dict[str, Any] | None = None
) -> Any:
    """Return a function of tensors under ``jax.checkpoint``."""
    return wrap_jax_jit(torch_function, jax.checkpoint, kwargs)


fori_loop = torch_view(jax.lax.fori_loop)


# --- modules --------------------------------------------------------------------------------------


Tensors = dict[str, torch.Tensor]


def extract_all_buffers(module: nn.Module) -> tuple[Tensors, Tensors]:
    """Return the parameters that require gradients, and all other tensors, by name.

    Tied ones are listed under each of their names, and plain attributes are included.
    """
    params: Tensors = {}
    others: Tensors = {}
    for name, tensor in names.in_module("", module):
        is_trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
        (params if is_trained else others)[name] = tensor
    return params, others


def set_all_buffers(module: nn.Module, params: Tensors, buffers: Tensors) -> None:
    """Put these tensors into a module, by the names of :func:`extract_all_buffers`."""
    for name, tensor in {**params, **buffers}.items():
        path, _, last = name.rpartition(".")
        part = module.get_submodule(path)
        if name in params and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor.detach())
        if last in part._buffers or last in part._parameters:
            setattr(part, last, tensor)
        else:
            vars(part)[last] = tensor


class JittableModule(nn.Module):
    """A module with its tensors as two dicts, ``params`` and ``buffers``, which may be replaced.

    Its methods are compiled: by ``jax.jit`` if ``extra_jit_args`` are given, else by
    ``torch_jax.jit``, through which gradients flow and which writes buffers.

    Args:
      m: the module.
      env: an environment; all environments compute alike.
      extra_jit_args: options of ``jax.jit`` for methods as ``f(params, buffers, *args)``.
      dedup_parameters: whether a tied parameter is there once, under its first name.
    """

    def __init__(
        self,
        m: nn.Module,
        env: Any = None,
        extra_jit_args: dict[str, Any] | None = None,
        dedup_parameters: bool = True,
    ):
        super().__init__()
        own = vars(self)
        own["_model"], own["_env"] = m, env or default_env()
        own["_options"], own["_jitted"] = extra_jit_args, {}
        params, own["buffers"] = extract_all_buffers(m)
        own["_first"] = first_names(params) if dedup_parameters else {n: n for n in params}
        own["params"] = {name: params[name] for name in dict.fromkeys(own["_first"].values())}

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._model.__class__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward``."""
        return self.forward(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a plain attribute: dicts of tensors are no modules or parameters of this one."""
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        """Return a compiled method, or an attribute of the module."""
        compiled = vars(self).get("_jitted", {})
        return compiled[name] if name in compiled else getattr(vars(self)["_model"], name)

    def __len__(self) -> int:
        """Return the number of parts of a sequence of modules."""
        return len(self._model)

    def __getitem__(self, key: Any) -> Any:
        """Return a part of a sequence of modules."""
        return self._model[key]

    def functional_call(
        self, method_or_name: Any, params: Any, buffers: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a method of the module, or a function of it, with other tensors in their places.

        Random operators draw from a ``jax.random.key`` given before the other arguments.
        """
        key, args = (args[0], args[1:]) if args and draws.is_key(args[0]) else (None, args)
        held = {**buffers, **{name: params[first] for name, first in self._first.items()}}
        held = {name: tensor_of(value) for name, value in held.items()}
        method = method_or_name
        if isinstance(method, str):
            method = getattr(self._model, method)
        elif callable(method):
            method = functools.partial(method, self._model)
        else:
            raise TypeError(
                "method_or_name should be a callable or a string, "
                f"got {type(method_or_name).__name__}"
            )
        with self._env.override_property(prng=key):
            with SWAPPING, pytorch.reparametrized(self._model, held):
                return method(*args, **kwargs)

    def with_rng(self, rng: Any) -> Any:
        """Return a block in which random operators draw from a key."""
        return self._env.override_property(prng=rng)

    def jittable_call(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method, compiled."""
        if method_name not in self._jitted:
            self.make_jitted(method_name)
        return self._jitted[method_name](*args, **kwargs)

    def make_jitted(self, key: str) -> None:
        """Let a method be compiled when it is called."""
        call = functools.partial(self.functional_call, key)
        compiled = jit(call) if self._options is None else jitted(call, self._options)
        self._jitted[key] = lambda *args, **kwargs: compiled(
            self.params, self.buffers, *args, **kwargs
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's ``forward``, compiled."""
        return self.jittable_call("forward", *args, **kwargs)
