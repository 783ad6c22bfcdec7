"""The parts of an operator's schema that a kernel needs, read once per overload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

TENSOR, TENSORS, NUMBER, NUMBERS, STATIC, DTYPE, DROP, GENERATOR, INTEGERS = range(9)

# A predicate is the kind of a number that is static where it holds.
Kind = int | Callable[[Any], bool]

_KINDS: dict[str, int] = {
    "Tensor": TENSOR,
    "List[Tensor]": TENSORS,
    "List[Optional[Tensor]]": TENSORS,
    "number": NUMBER,
    "float": NUMBER,
    "List[number]": NUMBERS,
    "ScalarType": DTYPE,
    "Generator": GENERATOR,
    "Layout": DROP,
    "Device": DROP,
    "MemoryFormat": DROP,
}


class Signature(NamedTuple):
    """Kinds of the arguments, by position and by name, and which of them the operator writes."""

    names: tuple[str, ...]
    positional: tuple[Kind, ...]
    by_name: dict[str, Kind]
    writes: tuple[str, ...]
    fresh: int
    lists: tuple[bool, ...]
    returns: tuple[str | None, ...]  # for each, the argument that it aliases; None: a new tensor

    def named(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(self.names, args, strict=False)) | kwargs

    def split(self, named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments as a call takes them: positional ones in order, others by name."""
        rest, args = dict(named), []
        for name in self.names[: len(self.positional)]:
            if name not in rest:
                break
            args.append(rest.pop(name))
        return args, rest

    def returned(self, new: Iterable[Any], given: dict[str, Any]) -> Any:
        """Return what a call returns: new results, and arguments that it has written."""
        fresh = iter(new)
        found = [next(fresh) if name is None else given[name] for name in self.returns]
        return found[0] if len(found) == 1 else tuple(found) if found else None


def kind_of(argument: Any, static: Mapping[str, Any], integers: frozenset[str]) -> Kind:
    """Return the way in which an argument of a schema reaches a lowering."""
    if argument.name in integers:
        return INTEGERS
    if argument.name in ("pin_memory", "non_blocking"):
        return DROP
    text = str(argument.real_type)
    if text.startswith("Optional["):
        text = text[len("Optional[") : -1]
    kind = _KINDS.get(text, STATIC)
    if kind not in (NUMBER, NUMBERS) or argument.name not in static:
        return kind
    return static[argument.name] if kind == NUMBER and static[argument.name] else STATIC


def signature(
    op: Any,
    static: Mapping[str, Any],
    extra_writes: tuple[str, ...] = (),
    integers: frozenset[str] = frozenset(),
) -> Signature:
    """Read the schema of the overload ``op``."""
    schema = op._schema
    arguments = schema.arguments
    written = {
        next(iter(a.alias_info.before_set), a.name): a.name
        for a in arguments
        if a.alias_info is not None and a.alias_info.is_write
    }
    returns = tuple(
        written.get(next(iter(r.alias_info.before_set), "")) if r.alias_info else None
        for r in schema.returns
    )
    kinds = {a.name: kind_of(a, static, integers) for a in arguments}
    return Signature(
        names=tuple(a.name for a in arguments),
        positional=tuple(kinds[a.name] for a in arguments if not a.kwarg_only),
        by_name=kinds,
        writes=(*written.values(), *extra_writes),
        fresh=sum(name is None for name in returns),
        lists=tuple(str(r.real_type) == "List[Tensor]" for r in schema.returns),
        returns=returns,
    )
