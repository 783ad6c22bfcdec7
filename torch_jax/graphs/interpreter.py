"""``torch_jax.JaxInterpreter``: an fx graph as a function of ``jax.Array``s."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from torch_jax._private import jax_core
from torch_jax.core import waking
from torch_jax.core.x64 import x64
from torch_jax.dispatch import ladder
from torch_jax.graphs.graph_run import GraphRun, running
from torch_jax.graphs.runner import Runner, first_names, tensors_of
from torch_jax.memory import generators, storage
from torch_jax.memory.border import users_array


class JaxInterpreter:
    """An fx graph as a pure function of ``jax.Array``s, to be jitted, differentiated, vmapped.

    The graph may be of ATen operators or of PyTorch's functions, made by ``make_fx``,
    ``torch.export``, ``torch.fx.symbolic_trace`` or a pass of your own, from a model on any device.
    It runs by the operators of device ``jax``; ``torch.cond``, ``while_loop``, ``scan``, ``map``
    and ``checkpoint`` become JAX's own. int64 and float64 are those of PyTorch, under any value of
    ``jax_enable_x64``.

    Args:
      module: a ``torch.fx.GraphModule`` or a ``torch.export.ExportedProgram``.
      state: arrays for the parameters, buffers and constants of the module by name. Others are read
        from the module, once.

    Attributes:
      state: all of these, a dict of arrays. A tensor with two names (tied weights) is there once,
        under the first.

    >>> import jax
    >>> model = torch.nn.Linear(3, 2)
    >>> run = JaxInterpreter(torch.fx.symbolic_trace(model))
    >>> jax.jit(run)(jax.numpy.ones((4, 3))).shape
    (4, 2)
    >>> loss = lambda state, x: (run.call(state, x) ** 2).sum()
    >>> jax.grad(loss)(run.state, jax.numpy.ones((4, 3)))["weight"].shape
    (2, 3)
    """

    def __init__(self, module: Any, state: Mapping[str, Any] | None = None):
        prepare()
        if isinstance(module, torch.export.ExportedProgram):
            module = module.module(check_guards=False)  # with its own tensors
        if not isinstance(module, fx.GraphModule):
            raise TypeError(
                f"JaxInterpreter takes a torch.fx.GraphModule or an ExportedProgram, not a "
                f"{type(module).__name__}: make one with torch.fx.symbolic_trace or torch.export"
            )
        self.module = module
        tensors = tensors_of(module)
        self._names = first_names(tensors)
        held = {name: tensors[name] for name in self._names.values()}
        given = dict(state or {})
        if unknown := given.keys() - self._names.keys():
            raise KeyError(f"the graph holds no tensors named {sorted(unknown)}")
        named = {self._names[name]: array for name, array in given.items()}
        self.state = {n: named[n] if n in named else users_array(t) for n, t in held.items()}

    def __call__(self, *args: Any, key: Any = None, **kwargs: Any) -> Any:
        """Run the graph with the state it holds; see :meth:`call`."""
        return self.call(self.state, *args, key=key, **kwargs)

    def call(self, state: Mapping[str, Any], *args: Any, key: Any = None, **kwargs: Any) -> Any:
        """Run the graph on arrays.

        Args:
          state: arrays by name, as :attr:`state`.
          *args: the graph's arguments: arrays where it takes tensors, in any tree.
          key: a ``jax.random.key``, for graphs that draw random numbers. Without, they draw from
            PyTorch's generator of the device, which under a trace is an error.
          **kwargs: the graph's named arguments.

        Returns:
          The graph's result, arrays in place of tensors. Its writes to arguments in place are not
          seen outside.

        Raises:
          TypeError: an argument is a ``torch.Tensor``.
          OperatorNotFound: an operator of the graph has no lowering. Like all errors of a graph, it
            names the node and its line of source.
          DataDependentError: under a trace, the graph asks for a value.
        """
        return self.call_stateful(state, *args, key=key, **kwargs)[0]

    def call_stateful(
        self, state: Mapping[str, Any], *args: Any, key: Any = None, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return the result as :meth:`call`, and the state after it (statistics of batch norm)."""
        if unknown := state.keys() - self.state.keys():
            raise KeyError(f"the graph holds no tensors named {sorted(unknown)}")
        held = {name: _given(array) for name, array in state.items()}
        tensors = {name: held[first] for name, first in self._names.items() if first in held}
        args, kwargs = pytree.tree_map(_given, (args, kwargs))
        draws = key is None and jax_core.is_outside_traces()  # in a trace a draw is a constant
        generator = generators.default_generator if draws else None
        with running(GraphRun(key_words(key), generator)):
            result = Runner(self.module, tensors).run(*_positional(self.module, args, kwargs))
            return _arrays(result), {name: users_array(tensor) for name, tensor in held.items()}


def prepare() -> None:
    """Wake the device, and let programs keep 64-bit types, before anything is traced."""
    waking.wake()
    _keep_x64()


@functools.cache
def _keep_x64() -> None:
    """Let programs keep 64-bit types; drop JAX's earlier traces, which would not."""
    jax_core.keep_x64_in_programs()
    ladder.forget_compiled()
    jax.clear_caches()


def key_words(key: Any) -> Any:
    """Return the key words of a run's first draw."""
    if key is None:
        return None
    bits = jax.random.bits(key, (2,), jnp.uint32)
    return jnp.concatenate([bits, jnp.zeros(2, jnp.uint32)])


def _given(value: Any) -> Any:
    """Return an argument as the graph takes it: arrays as tensors, others unchanged."""
    if isinstance(value, torch.Tensor):
        raise TypeError(
            "JaxInterpreter takes jax.Arrays, not tensors: call the module itself for these, or "
            "give it torch_jax arrays with jax.numpy.asarray(tensor.cpu())"
        )
    if isinstance(value, np.ndarray | np.generic):
        with x64():
            value = jnp.asarray(value)
    return storage.wrap(value) if isinstance(value, jax.Array) else value


def _arrays(result: Any) -> Any:
    """Return a graph's result with arrays for tensors, and plain containers for those of fx."""
    if isinstance(result, immutable_dict):
        return {key: _arrays(value) for key, value in result.items()}
    if isinstance(result, immutable_list):
        return [_arrays(value) for value in result]
    if type(result) in (list, tuple):
        return type(result)(map(_arrays, result))
    return pytree.tree_map_only(torch.Tensor, users_array, result)


def _positional(module: fx.GraphModule, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """Return arguments in the order of the graph's inputs."""
    spec = getattr(getattr(module.graph._codegen, "pytree_info", None), "in_spec", None)
    if spec is not None:  # of (args, kwargs): the graph flattens them in this order
        order = spec.children()[1].context
        given = (*args, *(kwargs[name] for name in order if name in kwargs))
        count = len(pytree.tree_leaves(given))
        if count != spec.num_leaves or kwargs.keys() - set(order):
            raise TypeError(
                f"the graph takes {spec.num_leaves} inputs, not {count}; their names are {order}, "
                f"not {list(kwargs)}"
            )
        return given
    inputs = inspect.signature(module.forward)
    try:
        bound = inputs.bind(*args, **kwargs)
    except TypeError as error:
        count = len(inputs.parameters)
        raise TypeError(f"the graph takes {count} inputs, not these: {error}") from error
    bound.apply_defaults()
    return (*bound.args, *bound.kwargs.values())
