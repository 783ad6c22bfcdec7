"""Graphs of ``torch.export`` with sizes that may change, run over arrays with symbolic sizes.

A tensor has integers for sizes; an array under ``jax.export`` may have symbols. So the table's
functions are called on arrays directly, node by node.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import export as jax_export
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree

from torch_jax._private import dynamo, pytorch
from torch_jax.core import errors, precision
from torch_jax.core.tracers import NotTraceableError
from torch_jax.core.user_code import is_library
from torch_jax.core.x64 import x64
from torch_jax.eager import entry, variants
from torch_jax.eager.signature import DROP, DTYPE, NUMBER, NUMBERS, Signature, signature
from torch_jax.exporting.symbolic import sizes as symbolic_numbers
from torch_jax.exporting.symbolic.views import VIEWS
from torch_jax.graphs.interpreter import JaxInterpreter
from torch_jax.graphs.runner import first_names
from torch_jax.memory import dtypes, geometry, transfer
from torch_jax.ops import promotion
from torch_jax.ops.precision import precisions_are
from torch_jax.ops.registry import TABLE, Lowering

_CHECKS = """
    _assert_scalar _assert_tensor_metadata _assert_async.msg sym_constrain_range
    sym_constrain_range_for_size
""".split()
_USER = torch.export.graph_signature.InputKind.USER_INPUT


def has_symbols(program: Any) -> bool:
    """Return whether sizes of an ``ExportedProgram``'s inputs may change."""
    return any(isinstance(n, torch.SymInt) for shape in _shapes(program) for n in shape or ())


def inputs_of(program: Any) -> tuple[tuple, dict[str, Any]]:
    """Return the example arguments, with shapes of symbols in place of tensors."""
    leaves, tree = pytree.tree_flatten(program.example_inputs)
    bounds = []
    for symbol, (least, most) in ranges_of(program).items():
        bounds += [f"{symbol} >= {least}"] + ([] if most is None else [f"{symbol} <= {most}"])
    scope = jax_export.SymbolicScope(bounds)

    def symbolic(shape: Any) -> Any:
        texts = (n.node.expr if isinstance(n, torch.SymInt) else int(n) for n in shape)
        text = ", ".join(map(str, texts))
        return jax_export.symbolic_shape(f"({text},)" if shape else "()", scope=scope)

    forms = [
        leaf if shape is None else jax.ShapeDtypeStruct(symbolic(shape), dtypes.to_jax(leaf.dtype))
        for leaf, shape in zip(leaves, _shapes(program), strict=True)
    ]
    return pytree.tree_unflatten(forms, tree)


def _shapes(program: Any) -> list[Any]:
    """Return PyTorch's shapes of the arguments."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind == _USER:
            node = nodes.get(getattr(spec.arg, "name", None))
            value = None if node is None else node.meta.get("val")
            if isinstance(value, torch.SymInt):
                raise NotTraceableError(f"argument {spec.arg.name} is a number that may change")
            found.append(value.shape if isinstance(value, torch.Tensor) else None)
    return found


def ranges_of(program: Any) -> dict[str, tuple[int, int | None]]:
    """Return the least and the most of each symbol."""
    found: dict[str, tuple[int, int | None]] = {}
    for symbol, span in program.range_constraints.items():
        known = span.upper.is_number and span.upper.is_finite and span.upper < 2**31
        found[str(symbol)] = max(int(span.lower), 1), int(span.upper) if known else None
    return found


def runner_of(program: Any) -> Any:
    """Return an ``ExportedProgram`` as a function of arrays, of any sizes that it allows."""
    return SymbolicProgram(program) if has_symbols(program) else JaxInterpreter(program)


class SymbolicProgram:
    """An ``ExportedProgram`` whose sizes may change."""

    def __init__(self, program: Any):
        self.program = _decomposed(program)
        module = self.program.graph_module
        for node in reversed(list(module.graph.nodes)):  # JAX checks sizes at each call
            if isinstance(node.target, OpOverload) and variants.table_name(node.target) in _CHECKS:
                module.graph.erase_node(node)
        module.graph.eliminate_dead_code()
        module.recompile()
        held = self.program.state_dict | self.program.constants
        self._specs = self.program.graph_signature.input_specs
        targets = (spec.target for spec in self._specs if spec.target is not None)
        self._first = first_names({target: held[target] for target in targets})
        # parameters, buffers and constants by name
        self.state = {n: transfer.array_of(held[n].detach()) for n in self._first.values()}

    def call(self, state: Mapping[str, jax.Array], *args: Any, key: Any = None) -> Any:
        """Run it on arrays, as :meth:`JaxInterpreter.call`; writes to its state have no effect.

        Tensors replace arrays in the result, and have them as attribute ``array``: containers of
        the result inspect their contents. Nothing is drawn from ``key``.
        """
        leaves = iter(pytree.tree_leaves(args, is_leaf=lambda leaf: leaf is None))
        given = [self._input(spec, state, leaves) for spec in self._specs]
        runner = _Runner(self.program.graph_module)
        runner.extra_traceback = False  # the errors name the line
        with x64():
            results = runner.run(*given)
            specs = self.program.graph_signature.output_specs
            wanted = torch.export.graph_signature.OutputKind.USER_OUTPUT
            results = [r for r, spec in zip(results, specs, strict=True) if spec.kind == wanted]
            return pytree.tree_unflatten(map(_stand_in, results), self.program.call_spec.out_spec)

    def _input(self, spec: Any, state: Mapping[str, jax.Array], leaves: Iterator[Any]) -> Any:
        """Return an input of the graph: a weight, an argument, or a token of ordered effects."""
        if spec.target is not None:
            return state[self._first[spec.target]]
        return next(leaves) if spec.kind == _USER else None


def _stand_in(result: Any) -> Any:
    """Return a tensor without elements that carries an array."""
    if jax_export.is_symbolic_dim(result):
        result = jnp.asarray(result)
    result = symbolic_numbers.as_array(result)
    if not isinstance(result, jax.Array):
        return result
    tensor: Any = torch.empty(0, device="meta")
    tensor.array = result
    return tensor


def _decomposed(program: Any) -> Any:
    """Return the program in operators that have functions here."""
    sizes = [n for shape in _shapes(program) for n in shape or () if isinstance(n, torch.SymInt)]
    symbols = set().union(*(size.node.expr.free_symbols for size in sizes))
    before = len(dynamo.guards_of(sizes[0]))
    table = pytorch.decompositions() | dict(torch.export.default_decompositions().items())
    program = program.run_decompositions(
        {op: d for op, d in table.items() if isinstance(op, OpOverload) and not _is_known(op)}
    )
    guards = dynamo.guards_of(sizes[0])[before:]
    fixed = [
        str(g) for g in guards if g.is_Relational and g.rel_op == "==" and g.free_symbols & symbols
    ]
    if fixed:
        raise NotTraceableError(
            f"PyTorch decomposes an operator of this program for {fixed} only, while sizes may "
            "change: export it with fixed sizes there"
        )
    return program


def _is_known(op: OpOverload) -> bool:
    name = variants.table_name(op)
    return name in VIEWS or name in _CHECKS or (name in TABLE and not TABLE[name].random)


class _Runner(fx.Interpreter):
    """Runs a graph's nodes on arrays."""

    def run_node(self, node: fx.Node) -> Any:
        """Run one node; an error names it, and its line."""
        try:
            with precisions_are(precision.state()):
                return _in_dtype(super().run_node(node), node.meta.get("val"))
        except Exception as error:
            if isinstance(error, NotTraceableError):
                raise
            raise NotTraceableError(
                f"{node.target} ({node.name}, {_line(node)}) cannot take sizes that may change: "
                f"{type(error).__name__}: {error}. Export it with fixed sizes there."
            ) from error

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator, or arithmetic of sizes."""
        if isinstance(target, HigherOrderOperator) and target.name() == "with_effects":
            token, target, *args = args
            result = self.call_function(target, tuple(args), kwargs)
            return token, *(result if isinstance(result, list | tuple) else (result,))
        if not isinstance(target, OpOverload):
            if target is operator.getitem:
                return args[0][args[1]]
            if kwargs or not all(map(symbolic_numbers.is_number, args)):
                raise NotImplementedError("only ATen operators and arithmetic of sizes are known")
            return symbolic_numbers.evaluate(target, args)
        args, kwargs = pytree.tree_map(symbolic_numbers.as_array, (args, kwargs))
        name = variants.table_name(target)
        if name in VIEWS:
            return VIEWS[name](*args, **_named(kwargs))
        if name not in TABLE:
            raise errors.not_found(target, args, kwargs, "leave it out of what is exported")
        return _apply(target, TABLE[name], args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = self.fetch_attr(target)
        return transfer.array_of(value) if isinstance(value, torch.Tensor) else value


def _named(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments for functions: dtypes are NumPy's, and placement is left out."""
    return {
        name: dtypes.to_jax(value) if isinstance(value, torch.dtype) else value
        for name, value in kwargs.items()
        if name not in ("device", "layout", "pin_memory", "non_blocking", "memory_format")
    }


def _apply(op: OpOverload, lowering: Lowering, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a function of the table as the eager executor does."""
    if lowering.random:
        raise NotTraceableError(
            f"{op} draws random numbers, which would be the same at each call: call model.eval()"
        )
    if lowering.concrete is True:
        raise TypeError("the size of its result depends on values")
    sig = signature(op, lowering.static, lowering.writes)
    given = dict(zip(sig.names, args, strict=False)) | kwargs
    named = {n: _argument(sig, n, value) for n, value in given.items() if sig.by_name[n] != DROP}
    for name in lowering.strided:
        named[f"{name}_strides"] = geometry.row_major(named[name].shape)
    with promotion.default_float_is(dtypes.to_jax(torch.get_default_dtype())):
        result = entry.apply(lowering.function, sig, named)
    return result[: sig.fresh] if lowering.writes else result


def _argument(sig: Signature, name: str, value: Any) -> Any:
    kind = sig.by_name[name]
    if value is None:
        return None
    if kind == DTYPE:
        return dtypes.to_jax(value)
    if kind == NUMBER:
        return jnp.asarray(value)
    if kind == NUMBERS:
        return [jnp.asarray(v) for v in value]
    is_static = isinstance(value, list) and not any(isinstance(v, jax.Array) for v in value)
    return tuple(value) if is_static else value


def _in_dtype(result: Any, expected: Any) -> Any:
    """Return a result in PyTorch's dtype of it."""
    if isinstance(expected, list | tuple) and isinstance(result, list | tuple):
        return list(map(_in_dtype, result, expected))
    value = getattr(result, "value", result)
    if isinstance(expected, torch.Tensor) and isinstance(value, jax.Array | np.ndarray):
        return promotion.convert(jnp.asarray(value), dtypes.to_jax(expected.dtype))
    return value


def _line(node: fx.Node) -> str:
    """Return the line of the user's code that a node comes from."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    own = [line for line in lines if not is_library(line.split('"')[1])]
    return [*lines, *own, "of unknown source"][-2 if lines else -1]
