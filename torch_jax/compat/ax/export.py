"""``torchax.export``: programs of ``torch.export`` as functions of JAX, and as StableHLO."""

from __future__ import annotations

from typing import Any

import jax

from torch_jax.compat.ax.environment import default_env
from torch_jax.graphs.interpreter import JaxInterpreter as JaxInterpreter


def exported_program_to_jax(exported_program: Any, export_raw: bool = False) -> tuple[Any, ...]:
    """The weights of an exported program as a list of arrays, and it as a function of these.

    The function is ``f(weights, args)`` and gives a tuple. With ``export_raw`` the names of the
    weights come first, and the weights are tensors.
    """
    interpreter = JaxInterpreter(exported_program)
    names = list(interpreter.state)

    def function(weights: Any, args: Any) -> Any:
        result = interpreter.call(dict(zip(names, weights, strict=True)), *args)
        return result if isinstance(result, tuple) else (result,)

    if export_raw:
        tensors = {
            **dict(exported_program.named_parameters()),
            **dict(exported_program.named_buffers()),
            **exported_program.constants,
        }
        return names, [tensors[name] for name in names], function
    return default_env().t2j_copy(list(interpreter.state.values())), function


def exported_program_to_stablehlo(exported_program: Any) -> tuple[Any, Any]:
    """The weights, and an exported program of ``jax.export``: its ``mlir_module()`` is the text.

    Sizes that may change are sizes that the program was exported with here; ``torch_jax.export``
    keeps them open, and writes a file that runs without PyTorch.
    """
    weights, function = exported_program_to_jax(exported_program)
    return weights, jax.export.export(jax.jit(function))(weights, _inputs(exported_program))


def _inputs(exported_program: Any) -> Any:
    args, kwargs = exported_program.example_inputs
    if kwargs:
        raise NotImplementedError(
            f"arguments {sorted(kwargs)} are named: torch_jax.export takes named arguments"
        )
    return default_env().t2j_copy(tuple(args))
