"""In-place, ``out=`` and ``_foreach_`` operators, derived from functional ones by schema.

Nothing here is written per operator: ``add_.Tensor`` is the overload of ``add`` that takes the
same arguments, and ``_foreach_add.ScalarList`` is ``add`` over a list of tensors and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import torch

from torch_jax._private import pytorch
from torch_jax.memory.storage import tensors_in
from torch_jax.ops.registry import TABLE, Lowering

# foreach operators whose name is not that of the operator they repeat
_FOREACH_NAMES = {"clamp_max": "minimum", "clamp_min": "maximum", "max": "amax"}
FACTORY_CHOICES = frozenset({"dtype", "layout", "device", "pin_memory"})
_ELEMENT = {"List[Tensor]": "Tensor", "List[number]": "number"}


def overload(name: str) -> Any:
    """Return the overload ``"add.Tensor"`` of aten (or ``"ns::add"``), None if there is none."""
    namespace, _, rest = name.rpartition("::")
    packet_name, _, overload_name = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace or "aten"), packet_name, None)
    return getattr(packet, overload_name or "default", None)


def table_name(op: Any) -> str:
    """Return the name of an overload in the table: ``"add.Tensor"``, ``"relu"``."""
    return op.name().removeprefix("aten::")


def entering(table: dict[str, Callable[..., Any]]) -> Callable[..., Callable[[Callable], Callable]]:
    """Return a decorator that enters a function in a table, under names of overloads."""

    def under(*names: str) -> Callable[[Callable], Callable]:
        def enter(function: Callable) -> Callable:
            table.update(dict.fromkeys(names, function))
            return function

        return enter

    return under


def siblings(packet_name: str, namespace: str = "aten") -> Iterator[Any]:
    """Yield all overloads of ``<namespace>.<packet_name>``."""
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    for name in packet.overloads() if packet is not None else ():
        found = getattr(packet, name, None)
        full = f"{namespace}::{packet_name}.{name}".removesuffix(".default")
        if found is not None and pytorch.is_dispatched(full):  # others are TorchScript's alone
            yield found


def named(name: str) -> list[Any]:
    """Return the overloads named by ``"aten::relu"``, ``"dropout"`` or ``"aten.add.Tensor"``."""
    plain = name.removeprefix("torch.ops.").removeprefix("aten.")
    namespace, _, rest = plain.rpartition("::")
    packet, _, wanted = rest.partition(".")
    return [op for op in siblings(packet, namespace or "aten") if wanted in ("", op._overloadname)]


def functional_of(op: Any) -> Any:
    """Return the functional overload of an in-place or ``out=`` overload, or None."""
    schema = op._schema
    packet = schema.name.removeprefix("aten::")
    bases = [packet.removesuffix("_"), packet, f"{packet.removesuffix('_')}_functional"]
    # the out= overload of a factory has no dtype and device of its own
    for ignored in (frozenset(), FACTORY_CHOICES) if is_out(op) else (frozenset(),):
        inputs = _inputs(schema, ignored)
        for base in dict.fromkeys(bases):
            for candidate in siblings(base):
                same = _inputs(candidate._schema, ignored) == inputs
                if same and not candidate._schema.is_mutable:
                    return candidate
    return None


def is_out(op: Any) -> bool:
    """Return whether the overload writes keyword-only arguments (``out=``)."""
    return any(is_out_argument(a) for a in op._schema.arguments)


def is_out_argument(argument: Any) -> bool:
    """Return whether an argument is one of ``out=``."""
    return argument.kwarg_only and is_mutated(argument)


def is_mutated(argument: Any) -> bool:
    """Return whether an operator writes this argument."""
    return argument.alias_info is not None and argument.alias_info.is_write


def written(op: Any, args: tuple, kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call of an operator writes."""
    for at, argument in enumerate(op._schema.arguments):
        if is_mutated(argument):
            yield from tensors_in(args[at] if at < len(args) else kwargs.get(argument.name))


def _inputs(schema: Any, ignored: frozenset[str]) -> list[tuple[str, str]]:
    return [
        (a.name, str(a.real_type))
        for a in schema.arguments
        if not is_out_argument(a) and a.name not in ignored
    ]


def foreach_lowering(op: Any) -> Lowering | None:
    """Return a lowering that applies the elementwise one to each position of the lists, or None."""
    schema = op._schema
    stem = schema.name.removeprefix("aten::_foreach_").removesuffix("_")
    types = [str(a.real_type) for a in schema.arguments if not is_out_argument(a)]
    base = _FOREACH_NAMES.get(stem, stem)
    if (element := _element_lowering(base, [_ELEMENT.get(one, one) for one in types])) is None:
        return None
    lowering, keywords = element
    # ``Tensor scalars`` is one tensor with a number for each position
    lists = [str(a.real_type) in _ELEMENT or a.name == "scalars" for a in schema.arguments]
    function = _repeat(lowering.function, lists, keywords, in_place=bool(schema.is_mutable))
    host, products = frozenset({"scalars"}), lowering.products
    return Lowering(schema.name, function, lowering.static, host=host, products=products)


def _element_lowering(base: str, types: list[str]) -> tuple[Lowering, list[str]] | None:
    """Return a lowering that takes these types in order, and its keyword-only names; or None."""
    for exact in (True, False):
        for candidate in siblings(base):
            lowering = TABLE.get(table_name(candidate))
            if lowering is None or candidate._schema.is_mutable:
                continue
            arguments = candidate._schema.arguments[: len(types)]
            pairs = zip(arguments, types, strict=False)
            fits = all(_accepts(str(a.real_type), t, exact) for a, t in pairs)
            if fits and len(arguments) == len(types):
                return lowering, [a.name if a.kwarg_only else "" for a in arguments]
    return None


def _accepts(parameter: str, given: str, exact: bool) -> bool:
    """Return whether an argument type fits; loosely, a number fits where a tensor is wanted."""
    parameter = parameter.removeprefix("Optional[").rstrip("]") if "[" in parameter else parameter
    return parameter == given or (not exact and {parameter, given} == {"Tensor", "number"})


def _repeat(
    function: Callable, lists: list[bool], keywords: list[str], in_place: bool
) -> Callable[..., Any]:
    def foreach(*args: Any, **kwargs: Any) -> Any:
        args = (*args, *kwargs.values())
        count = next(len(a) for a, is_list in zip(args, lists, strict=False) if is_list)
        elements = [
            [a[i] if is_list else a for a, is_list in zip(args, lists, strict=False)]
            for i in range(count)
        ]
        varying = [a for e in elements for a, is_list in zip(e, lists, strict=False) if is_list]
        run = one
        if elements and all(map(_is_array, varying)):
            run = _tracing_once(one, elements[0])
        return [run(*element) for element in elements]

    def one(*element: Any) -> Any:
        named = {k: a for k, a in zip(keywords, element, strict=False) if k}
        plain = [a for k, a in zip(keywords, element, strict=False) if not k]
        result = function(*plain, **named)
        return result.astype(element[0].dtype) if in_place else result

    return foreach


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic)


def _tracing_once(function: Callable[..., Any], first: list[Any]) -> Callable[..., Any]:
    """Return the function, traced once for each set of forms; only arrays are inputs.

    Made at each use, so that it knows nothing of the modes that another was traced in.
    """
    arrays = [at for at, value in enumerate(first) if _is_array(value)]

    @jax.jit
    def position(*given: Any) -> Any:
        element = list(first)
        for at, value in zip(arrays, given, strict=True):
            element[at] = value
        return function(*element)

    return lambda *element: position(*(element[at] for at in arrays))
