"""``torch_jax.nn_from_flax``: a module of flax as a module of PyTorch.

Its arrays are parameters and buffers on device ``jax``; its computation is an operator that calls
JAX, so that autograd, optimizers, ``torch_jax.jit`` and ``state_dict`` take it as any other module.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from torch_jax._private import dynamo, jax_core, pytorch
from torch_jax.core import trees, waking
from torch_jax.core.errors import require
from torch_jax.core.x64 import x64_as
from torch_jax.dispatch.call_jax import jax_function
from torch_jax.interop.crossing import asks_for_wide, narrowed
from torch_jax.interop.flax_definitions import Linen, Nnx, with_flags
from torch_jax.interop.functional import programs_of
from torch_jax.memory import border, dtypes
from torch_jax.memory.storage import wrap


def nn_from_flax(
    module: Any, *args: Any, variables: Any = None, method: str = "__call__", **kwargs: Any
) -> FlaxModule:
    """Return a module of flax, of linen or of nnx, as an ``nn.Module``.

    A module of nnx has its arrays. One of linen is a definition, given with either
    ``variables`` or the arguments of a first call, by which they are made.

    Args:
      module: a module of ``flax.nnx`` or ``flax.linen``; it is not changed.
      args: for linen, tensors or arrays as the module will be called with.
      variables: for linen, the result of ``module.init``, a dict of collections.
      method: for linen, the method that is called to make the variables.
      kwargs: for linen, as ``args``.

    Returns:
      A module with the methods of flax's. The collection ``params``, and variables of the type
      ``nnx.Param``, are parameters; all others are buffers, which calls update. Names are flax's,
      with dots. ``train()`` and ``eval()`` decide arguments named ``train``, ``deterministic`` or
      ``use_running_average`` that a call leaves out, and call nnx's methods of these names.
      Random numbers come from PyTorch's generator of the device.

    Raises:
      TypeError: ``module`` is no module of flax.
      ValueError: neither ``variables`` nor arguments of a first call are given.

    >>> from flax import linen
    >>> layer = nn_from_flax(linen.Dense(2), torch.zeros(1, 3))
    >>> {name: tuple(p.shape) for name, p in layer.named_parameters()}
    {'bias': (2,), 'kernel': (3, 2)}
    >>> layer(torch.ones(4, 3, device="jax")).sum().backward()
    >>> layer.bias.grad.tolist()
    [4.0, 4.0]
    """
    require("flax", 'torch_jax.nn_from_flax needs flax: pip install "torch_jax[flax]"')
    from flax import linen, nnx

    waking.wake()
    if isinstance(module, nnx.Module):
        if args or kwargs or variables is not None:
            raise TypeError("a module of nnx has its arrays: nn_from_flax(module)")
        definition = Nnx(module)
        return FlaxModule(definition, list(map(_tensor, definition.arrays)))
    if not isinstance(module, linen.Module):
        raise TypeError(
            f"nn_from_flax takes a module of flax.nnx or flax.linen, not {type(module)}"
        )
    if variables is None:
        variables = _initial(module, args, kwargs, method)
    else:
        variables = jax.tree_util.tree_map(_tensor, linen.meta.unbox(variables))
    found, structure = jax.tree_util.tree_flatten_with_path(variables)
    return FlaxModule(
        Linen(module, structure, [path for path, _ in found]), [value for _, value in found]
    )


def _tensor(value: Any) -> torch.Tensor:
    """Return the tensor of a variable; raise ``TypeError`` if its value is no array."""
    made = border.tensor_of(value)
    if not isinstance(made, torch.Tensor):
        raise TypeError(f"a variable of a flax module is no array but {value!r:.200}")
    return made


def _as_input(value: Any) -> Any:
    """Return a tensor for an array, which is an input of programs; all others unchanged."""
    is_array = isinstance(value, jax.Array | np.ndarray) and value.dtype in dtypes.TO_TORCH
    return wrap(jax_core.row_major(jax.numpy.asarray(value))) if is_array else value


def _initial(module: Any, args: tuple, kwargs: dict, method: str) -> Any:
    """Return the variables of a module of linen, made by its ``init``: a dict of tensors."""
    if not (args or kwargs):
        raise ValueError(
            f"{type(module).__name__} of linen makes its variables in a first call: "
            "nn_from_flax(module, *args) with arguments of one, or variables="
        )
    from flax import linen

    args, kwargs = trees.map(
        lambda x: x.detach().to(pytorch.DEVICE_TYPE) if isinstance(x, torch.Tensor) else x,
        trees.map(_as_input, (args, kwargs)),
    )
    kwargs = with_flags(getattr(module, method), False, args, kwargs)
    wide = _is_wide((args, kwargs))

    def init(words: jax.Array, args: Any, kwargs: Any) -> Any:
        with x64_as(wide):
            args, kwargs = jax.tree_util.tree_map(lambda x: narrowed(x, wide), (args, kwargs))
            return linen.meta.unbox(module.init(_key(words), *args, method=method, **kwargs))

    with torch.no_grad():
        return jax_function(init)(_words(), args, kwargs)


def _is_wide(tree: Any) -> bool:
    tensors = {t.dtype for t in trees.flatten(tree)[0] if isinstance(t, torch.Tensor)}
    return asks_for_wide(map(dtypes.to_jax, tensors))


def _words() -> torch.Tensor:
    """Draw words for a key of JAX's from PyTorch's generator of the device."""
    return torch.randint(0, 1 << 32, (2,), device=pytorch.DEVICE_TYPE)


def _key(words: jax.Array) -> jax.Array:
    """Return a key for JAX of such words, for the algorithm by which JAX draws."""
    first, second = words.astype(np.uint32)
    return jax.random.fold_in(jax.random.key(first), second)


class FlaxModule(nn.Module):
    """A module of flax as a module of PyTorch, made by :func:`nn_from_flax`."""

    def __init__(self, definition: Any, tensors: list[torch.Tensor]):
        """Take a definition, and a tensor for each of its variables."""
        super().__init__()
        self._definition = definition
        self._places: list[tuple[str, str]] = []  # of each variable: a submodule, and a name
        uses = Counter(variable.path for variable in definition.variables)
        for variable, tensor in zip(definition.variables, tensors, strict=True):
            *above, name = variable.path
            owner: Any = self
            for part in above:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner._modules[part]
            if variable.trained and (tensor.is_floating_point() or tensor.is_complex()):
                owner.register_parameter(name, nn.Parameter(tensor))
            else:
                if uses[variable.path] > 1:
                    name = f"{variable.collection}_{name}"
                owner.register_buffer(name, tensor)
            self._places.append((".".join(above), name))

    def extra_repr(self) -> str:
        """Return the name of the class of flax."""
        return f"of {self._definition.kind.__module__}.{self._definition.kind.__qualname__}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the flax module's ``__call__``."""
        return self._method("__call__", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return a submodule, parameter or buffer, or another method of the flax module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            definition: Any = self.__dict__.get("_definition")
            if name.startswith("_") or not callable(getattr(definition.kind, name, None)):
                raise
        return functools.partial(self._method, name)

    @dynamo.unseen
    def _method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the flax module, and update the buffers."""
        definition, training = self._definition, self.training
        args, kwargs = trees.map(_as_input, (args, kwargs))
        if isinstance(definition, Linen):  # nnx knows by itself whether it trains
            kwargs = with_flags(getattr(definition.module, method), training, args, kwargs)
        owners = dict(self.named_modules())
        tensors = [getattr(owners[above], name) for above, name in self._places]
        self._check(tensors, args, kwargs)
        wide = _is_wide((tensors, args, kwargs))
        program = programs_of(self).get_or_make(
            (method, training, wide),
            lambda: jax_function(_updating(definition, method, training, wide)),
        )
        # autograd keeps the value that a buffer had before it is written
        given = [t if isinstance(t, nn.Parameter) else t.clone() for t in tensors]
        form = torch.empty(2, dtype=torch.int64)
        traced, _ = program.traced_for(given, form, args, kwargs)
        words = _words() if traced.program.reads(len(given)) else None
        result, changed = program(given, words, args, kwargs)
        with torch.no_grad():
            for at, new in changed.items():
                tensors[int(at)].copy_(new)
        return result

    def _check(self, tensors: list[torch.Tensor], args: tuple, kwargs: dict) -> None:
        """Raise if a tensor is not on the device."""
        pairs = zip(self._places, tensors, strict=True)
        own = ((f"its {name!r}", "model", tensor) for (_, name), tensor in pairs)
        given = (("an argument", "x", leaf) for leaf in trees.flatten((args, kwargs))[0])
        for name, moved, leaf in (*own, *given):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != pytorch.DEVICE_TYPE:
                raise RuntimeError(
                    f"a module of flax runs on device 'jax', and {name}, "
                    f"{leaf.dtype}{list(leaf.shape)}, is on {str(leaf.device)!r}: "
                    f'{moved}.to("jax")'
                )


def _updating(definition: Any, method: str, training: bool, wide: bool) -> Callable[..., Any]:
    """Return a method as a function of arrays to its result, and the variables that it changed."""
    function = definition.function(method, training)

    def run(arrays: list[jax.Array], words: Any, args: tuple, kwargs: dict) -> Any:
        with x64_as(wide):
            args, kwargs = jax.tree_util.tree_map(lambda x: narrowed(x, wide), (args, kwargs))
            key = jax.random.key(0) if words is None else _key(words)
            result, after = function(arrays, key, args, kwargs)
            changed = {
                str(at): jax.lax.stop_gradient(new)
                for at, (old, new) in enumerate(zip(arrays, after, strict=True))
                if new is not old
            }
        for at in changed:
            if definition.variables[int(at)].trained:
                name = ".".join(definition.variables[int(at)].path)
                raise ValueError(f"{definition.kind.__name__}.{method} changes parameter {name!r}")
        return result, changed

    return run
