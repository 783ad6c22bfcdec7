"""``JittableModule``: a module whose parameters and buffers are arguments of its methods."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from torch_jax._private import pytorch
from torch_jax.capture.jit import jit
from torch_jax.compat.ax import draws
from torch_jax.compat.ax.environment import default_env, tensor_of
from torch_jax.compat.ax.interop import jitted
from torch_jax.graphs.runner import first_names
from torch_jax.interop import names
from torch_jax.interop.functional import SWAPPING

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
