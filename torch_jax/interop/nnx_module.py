"""``torch_jax.nnx_from_torch``: a module of PyTorch as a module of ``flax.nnx``."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_jax.core.errors import require
from torch_jax.graphs import interpreter
from torch_jax.interop.functional import Functional


def nnx_from_torch(module: torch.nn.Module, *, rngs: Any = None) -> Any:
    """Return a PyTorch module as a ``flax.nnx.Module``, of the same arrays.

    Its state is stored under ``tensors``, by the parts of PyTorch's names: parameters that require
    gradients as ``nnx.Param``, buffers as ``nnx.BatchStat``, parameters that require none as plain
    ``nnx.Variable``. ``nnx.jit``, ``nnx.value_and_grad`` and ``nnx.Optimizer`` take it as any other
    module; derivatives are PyTorch's, as for :func:`torch_jax.to_jax_function`.

    It starts in the mode of the module. ``eval()`` runs all of it in evaluation mode; ``train()``
    all in training mode, but for parts that were not in a module that was. Other methods than
    ``forward`` are called by ``method="name"``.

    Args:
      module: as for :func:`torch_jax.functional`.
      rngs: an ``nnx.Rngs``, whose stream ``dropout`` the random operators draw from in training;
        a call may also be given ``rngs=``.

    >>> from flax import nnx
    >>> import jax.numpy as jnp
    >>> model = nnx_from_torch(torch.nn.Linear(3, 2))
    >>> gradients = nnx.grad(lambda model, x: (model(x) ** 2).sum())(model, jnp.ones((4, 3)))
    >>> gradients.tensors.weight.shape
    (2, 3)
    """
    interpreter.prepare()
    return _class()(Functional(module), rngs)


@functools.cache
def _class() -> Any:
    require("flax", "nnx_from_torch needs flax: pip install flax")
    from flax import nnx, traverse_util

    class TorchModule(nnx.Module):
        """A module of PyTorch; see :func:`nnx_from_torch`."""

        def __init__(self, model: Functional, rngs: Any = None):
            params, kept = model.arrays()
            buffers = dict(model.module.named_buffers())
            variables: dict[str, Any] = {name: nnx.Param(array) for name, array in params.items()}
            for name, array in kept.items():
                kind = nnx.BatchStat if name in buffers else nnx.Variable
                variables[name] = kind(array)
            self.tensors = _nested(nnx, traverse_util.unflatten_dict(variables, sep="."))
            self.rngs = rngs
            self.model = nnx.static(model)
            self.deterministic = not model.module.training

        def __call__(self, *args: Any, rngs: Any = None, method: Any = None, **kwargs: Any) -> Any:
            variables = {
                ".".join(map(str, path)): one
                for path, one in nnx.iter_graph(self.tensors)
                if isinstance(one, nnx.Variable)
            }
            arrays = {name: variable[...] for name, variable in variables.items()}
            params = {name: arrays[name] for name in self.model.trained}
            kept = {name: arrays[name] for name in self.model.kept}
            rngs = self.rngs if rngs is None else rngs
            draws = rngs is not None and not self.deterministic
            key = rngs.dropout() if draws else None
            # training is each part's own mode, if the whole was in training
            training = None if self.model.modes[self.model.module] else True
            mode = False if self.deterministic else training
            result, after = self.model.call(params, kept, args, kwargs, key, method, mode)
            for name, array in after.items():
                if array is not kept[name]:
                    variables[name][...] = array
            return result

    TorchModule.__module__ = __name__
    return TorchModule


def _nested(nnx: Any, tree: Any) -> Any:
    """Return dicts of dicts as flax's own."""
    is_dict = isinstance(tree, dict)
    return nnx.Dict({name: _nested(nnx, tree[name]) for name in tree}) if is_dict else tree
