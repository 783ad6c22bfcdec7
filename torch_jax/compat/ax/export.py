"""``torchax.export``: programs of ``torch.export`` as functions of JAX, and as StableHLO."""

from __future__ import annotations

import operator
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from torch_jax.compat.ax.environment import default_env
from torch_jax.exporting.symbolic import program as symbolic
from torch_jax.graphs.interpreter import JaxInterpreter as JaxInterpreter


def exported_program_to_jax(exported_program: Any, export_raw: bool = False) -> tuple[Any, ...]:
    """Return the weights of an exported program as a list of arrays, and a function of these.

    The function is ``f(weights, args)`` and returns a tuple. If sizes of the program may change, it
    takes arrays of any sizes that the program allows, and symbols of ``jax.export``. With
    ``export_raw`` the names of the weights come first, and the weights are tensors.
    """
    run = symbolic.runner_of(exported_program)
    names = list(run.state)

    def function(weights: Any, args: Any) -> Any:
        state = dict(zip(names, weights, strict=True))
        array = operator.attrgetter("array")  # of a tensor in the result of a symbolic program
        result = pytree.tree_map_only(torch.Tensor, array, run.call(state, *args))
        return result if isinstance(result, tuple) else (result,)

    if export_raw:
        tensors = exported_program.state_dict | exported_program.constants
        return names, [tensors[name] for name in names], function
    return default_env().t2j_copy(list(run.state.values())), function


def exported_program_to_stablehlo(exported_program: Any) -> tuple[Any, Any]:
    """Return the weights, and a program of ``jax.export``: its ``mlir_module()`` is the text.

    Sizes that may change stay open. ``torch_jax.export`` writes a file that runs without PyTorch.

    Raises:
      NotTraceableError: sizes may change, and an operator of the program does not allow that.
    """
    args, kwargs = exported_program.example_inputs
    if kwargs:
        raise NotImplementedError(
            f"arguments {sorted(kwargs)} are named: torch_jax.export takes named arguments"
        )
    if symbolic.has_symbols(exported_program):
        inputs = tuple(symbolic.inputs_of(exported_program)[0])
    else:
        inputs = default_env().t2j_copy(tuple(args))
    weights, function = exported_program_to_jax(exported_program)
    return weights, jax.export.export(jax.jit(function))(weights, inputs)
