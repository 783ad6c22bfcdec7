"""``torch_jax.export``: a model as a StableHLO program that runs without PyTorch.

>>> model = torch.nn.Linear(3, 2)
>>> exported = export(model, (torch.ones(4, 3),))
>>> exported.call(torch.ones(4, 3)).shape
torch.Size([4, 2])
>>> "stablehlo.dot_general" in exported.mlir()
True
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import export as jax_export
from jax.interpreters import partial_eval
from torch.utils import _pytree as pytree

from torch_jax._private import pytorch
from torch_jax._version import __version__
from torch_jax.budgets import ELEMENTS_OF_A_SMALL_CONSTANT
from torch_jax.capture import hooks
from torch_jax.core import waking
from torch_jax.core.tracers import NotTraceableError
from torch_jax.core.x64 import x64
from torch_jax.dispatch import call_jax
from torch_jax.distributed import rules
from torch_jax.exporting import exported_file
from torch_jax.exporting.symbolic import program as symbolic
from torch_jax.graphs.graph_run import GraphRun, HostConstants, running
from torch_jax.memory import border, dtypes, storage, transfer

PLATFORMS = ("cpu", "cuda", "tpu")


class Exported(exported_file.Exported):
    """An exported model, which also takes tensors."""

    def __init__(self, *parts: Any):
        super().__init__(*parts)
        self._of_tensors = call_jax.jax_function(self.call_with)
        self._held: dict[str, torch.Tensor] = {}  # the weights as tensors, which are no constants

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, on arrays or on tensors; see :meth:`exported_file.Exported.call`.

        Tensors, on the CPU or on device ``jax``, return tensors on that device, through which
        gradients flow.
        """
        given = pytree.tree_leaves((args, kwargs))
        if not (tensors := [leaf for leaf in given if isinstance(leaf, torch.Tensor)]):
            return super().call(*args, **kwargs)
        args, kwargs = exported_file.without_static(args, kwargs, self.header.get("static", {}))
        self._held = self._held or {n: storage.wrap(w) for n, w in self.weights.items()}
        args, kwargs = pytree.tree_map(_on_device, (args, kwargs))
        try:
            results = self._of_tensors(self._held, *args, **kwargs)
        except NotImplementedError as error:
            raise exported_file.not_batched(error) from error
        target = tensors[0].device
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(target), results)

    def __reduce__(self) -> tuple:
        return load, super().__reduce__()[1]


def _on_device(leaf: Any) -> Any:
    """Return a tensor or an array as a tensor on device ``jax``; other leaves unchanged."""
    leaf = border.tensor_of(leaf)
    return leaf.to(pytorch.DEVICE_TYPE) if isinstance(leaf, torch.Tensor) else leaf


def load(source: str | os.PathLike | bytes) -> Exported:
    """Read an exported model, from its file or from its bytes.

    Raises:
      ValueError: it is damaged, no exported model, or made by a newer version; no code is executed.
      FileNotFoundError: there is no such file, or its weights are not beside it.
    """
    waking.wake()
    found = exported_file.load(source)
    return Exported(found.program, found.weights, found.header)


def export(
    model: Any,
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    platforms: tuple[str, ...] | None = None,
) -> Exported:
    """Export a model for inputs like these.

    Args:
      model: an ``nn.Module`` or a function, on the CPU or on device ``jax``, in the mode
        (``eval()``) in which it is to run; or a ``torch.export.ExportedProgram``, without other
        arguments.
      args: its arguments; tensors become inputs, of any value, all others are fixed.
      kwargs: its named arguments.
      dynamic_shapes: the sizes that may change, as for ``torch.export.export``:
        ``{"x": {0: torch.export.Dim("batch")}}``. The model then goes through ``torch.export``.
      platforms: those of the program, of ``"cpu"``, ``"cuda"``, ``"tpu"``, ``"rocm"``. By default
        the first three, or this one only if an operator is not for all of them.

    Returns:
      An :class:`Exported`, with ``call``, ``mlir``, ``serialize`` and ``save``.

    Raises:
      DataDependentError: the model reads values of tensors.
      NotTraceableError: it draws random numbers (dropout in training).
      OperatorNotFound: it has an operator without a lowering.
    """
    waking.wake()
    hooks.install()  # a step of an optimizer is heard of, and refused
    if not isinstance(args, tuple | list):
        raise TypeError(f"args is a tuple of arguments, (x,), not a {type(args).__name__}")
    platforms = (platforms,) if isinstance(platforms, str) else tuple(platforms or ()) or None
    known = (*PLATFORMS, "rocm")
    if unknown := [name for name in platforms or () if name not in known]:
        raise ValueError(f"platforms are of {known}, not {unknown[0]!r}")
    args, kwargs = tuple(args), dict(kwargs or {})
    if isinstance(model, torch.export.ExportedProgram):
        if args or kwargs or dynamic_shapes is not None:
            raise TypeError("an ExportedProgram has its arguments and shapes already: give none")
        return _of_graph(model, platforms)
    module = model
    if not isinstance(model, torch.nn.Module):
        module = torch.nn.Module()
        module.forward = model
    tensors = dict(rules.tensors_of(module, once=True))
    if dynamic_shapes is not None:
        with torch.no_grad():
            on_host = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
            if any(map(storage.is_jax, tensors.values())):
                module = copy.deepcopy(module).cpu()
            graph = torch.export.export(module, *on_host, dynamic_shapes=dynamic_shapes)
        return _of_graph(graph, platforms)
    arguments = _Arguments(args, kwargs)

    def program(words: jax.Array, weights: dict[str, jax.Array], *arrays: Any) -> Any:
        held = {name: storage.wrap(array) for name, array in weights.items()}
        args, kwargs = pytree.tree_map_only(jax.Array, storage.wrap, arguments.filled(arrays))
        with running(GraphRun(words, mode=HostConstants()), autograd=True), torch.no_grad():
            return _plain(torch.func.functional_call(module, held, args, kwargs))

    weights = {name: border.users_array(tensor) for name, tensor in tensors.items()}
    return _export(program, weights, arguments, platforms)


class _Arguments:
    """The arguments of a model: shapes of tensors, None for fixed ones."""

    def __init__(self, args: tuple, kwargs: dict[str, Any]):
        self.given = args, kwargs
        self.static: dict[str, Any] = {}  # fixed ones, by path, as a file can hold them
        # ``(args, kwargs)``; named arguments without tensors are left out
        self.shapes = exported_file.Arguments(args, kwargs).map(self._note)

    def _note(self, name: str, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return jax.ShapeDtypeStruct(tuple(leaf.shape), dtypes.to_jax(leaf.dtype))
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if isinstance(leaf, np.ndarray | jax.Array):
            raise TypeError(f"{name} is an array: models take tensors, torch.from_numpy(array)")
        self.static[name] = exported_file.as_static(leaf)
        return None

    def filled(self, given: tuple) -> tuple[tuple, dict[str, Any]]:
        """Return the arguments with the arrays of ``given``, ``(args, kwargs)``, and fixed ones."""
        arrays = iter(jax.tree_util.tree_leaves(given))
        kinds = torch.Tensor | jax.ShapeDtypeStruct
        return jax.tree_util.tree_map(
            lambda leaf: next(arrays) if isinstance(leaf, kinds) else leaf, self.given
        )


def _of_graph(graph: Any, platforms: tuple[str, ...] | None) -> Exported:
    """Export a program of ``torch.export``, of which sizes may change."""
    may_change = symbolic.has_symbols(graph)
    arguments = _Arguments(*(symbolic.inputs_of(graph) if may_change else graph.example_inputs))
    run = symbolic.runner_of(graph)

    def program(words: jax.Array, weights: dict[str, jax.Array], *arrays: Any) -> Any:
        args, kwargs = arguments.filled(arrays)
        # in the order of the graph, whose own arguments may be named as those of the call
        named = (kwargs[name] for name in graph.call_spec.in_spec.children()[1].context)
        return _plain(run.call(weights, *args, *named, key=jax.random.wrap_key_data(words[:2])))

    exported = _export(program, run.state, arguments, platforms)
    if may_change:
        exported.header["sizes"] = symbolic.ranges_of(graph)
    return exported


def _export(
    program: Callable[..., Any],
    weights: dict[str, jax.Array],
    arguments: _Arguments,
    platforms: Any,
) -> Exported:
    """Export a function of key words, weights and arguments, which must not need the first."""
    given = weights, *arguments.shapes
    shapes = jax.tree_util.tree_map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), given)
    with x64():
        traced_program, constants = _traced(program, shapes)
        weights = weights | constants
        shapes = weights, *shapes[1:]
        try:
            exported = jax_export.export(traced_program, platforms=platforms or PLATFORMS)(*shapes)
        except NotImplementedError:  # some operator is not for all of them
            if platforms is not None:
                raise
            exported = jax_export.export(traced_program)(*shapes)
    return Exported(exported, weights, _header(exported, arguments))


def _traced(program: Callable[..., Any], shapes: tuple) -> tuple[Any, dict[str, jax.Array]]:
    """Return a program, traced once, to be jitted; and large constants, which become weights.

    Operators without a part in its results are left out. Attention draws numbers for its dropout,
    and may use none: whether a model is random is known only afterwards.
    """
    words = jax.ShapeDtypeStruct((4,), jnp.uint32)
    closed, form = jax.make_jaxpr(program, return_shape=True)(words, *shapes)
    jaxpr, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals))
    if used[0]:
        raise NotTraceableError(
            "the model draws random numbers, which would be the same at each call: call "
            "model.eval() before it is exported, or make it take them as an argument"
        )
    tree = jax.tree_util.tree_structure(form)
    names = [_name_of_constant(i, c, shapes[0]) for i, c in enumerate(closed.consts)]

    def torch_jax_program(weights: Any, args: Any, kwargs: Any) -> Any:
        own = {name: weight for name, weight in weights.items() if name not in names}
        consts = [weights.get(n, c) for n, c in zip(names, closed.consts, strict=True)]
        leaves = jax.tree_util.tree_leaves((own, args, kwargs))
        given = [leaf for leaf, needed in zip(leaves, used[1:], strict=True) if needed]
        return jax.tree_util.tree_unflatten(tree, jax.core.eval_jaxpr(jaxpr, consts, *given))

    large = {n: jnp.asarray(c) for n, c in zip(names, closed.consts, strict=True) if n}
    return jax.jit(torch_jax_program), large


def _name_of_constant(index: int, value: Any, weights: Mapping[str, Any]) -> str:
    """Return the name, as a weight, of a constant that is too large for the program, else ""."""
    if value.size <= ELEMENTS_OF_A_SMALL_CONSTANT or not exported_file.can_hold(value):
        return ""
    name = f"constant_{index}"
    return name if name not in weights else f"{name}_"


def _header(exported: Any, arguments: _Arguments) -> dict[str, Any]:
    paths, _ = jax.tree_util.tree_flatten_with_path(arguments.shapes)
    names = [jax.tree_util.keystr(path[1:]) for path, _ in paths]
    inputs = exported.in_avals[len(exported.in_avals) - len(names) :]
    return {
        "format": exported_file.FORMAT,
        "version": exported_file.VERSION,
        "torch_jax": __version__,
        "torch": torch.__version__,
        "jax": jax.__version__,
        "platforms": list(exported.platforms),
        "inputs": {name: aval.str_short() for name, aval in zip(names, inputs, strict=True)},
        "outputs": [aval.str_short() for aval in exported.out_avals],
        "static": arguments.static,
    }


def _plain(value: Any) -> Any:
    """Return a result in JAX's containers: arrays in dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        held = getattr(value, "array", None)  # of a program whose sizes may change
        return transfer.as_array(value) if held is None else held
    if value is None or isinstance(value, jax.Array):
        return value
    if isinstance(value, bool | int | float | complex):
        return jnp.asarray(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    if type(value) in pytree.SUPPORTED_NODES:
        return [*map(_plain, pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0])]
    raise TypeError(
        f"the model returns a {type(value).__name__}, which cannot be exported: return tensors in "
        "dicts, lists and tuples"
    )
