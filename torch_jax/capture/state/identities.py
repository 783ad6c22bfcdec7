"""Where code asks whether two objects are one: which such questions have the same answer each time.

Numbers and texts that are equal may be one object or two, and lists are made anew. A class, a
function, a member of an enum are what they are: whether another value is that very object hangs on
where the other comes from, which is guarded.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import types
from types import CodeType
from typing import Any, NamedTuple

import torch

_FIXED = (
    type, enum.Enum, types.FunctionType, types.BuiltinFunctionType, types.ModuleType,
    types.NoneType, bool, types.EllipsisType, types.NotImplementedType,
    torch.dtype, torch.layout, torch.memory_format,
)  # fmt: skip
_LOCALS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF")
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_MISSING = object()


class Operand(NamedTuple):
    """A variable, and the attributes that are read off it: ``Mode.TRAIN``."""

    name: str
    is_global: bool
    attributes: tuple[str, ...]


def right_operand(instructions: list[dis.Instruction], at: int) -> Operand | None:
    """What the instruction at ``at`` compares with, if that is a variable or attributes of one."""
    attributes: list[str] = []
    at -= 1
    while instructions[at].opname == "LOAD_ATTR":
        attributes.insert(0, instructions[at].argval)
        at -= 1
    base = instructions[at]
    if base.opname in _GLOBALS and "NULL" not in base.argrepr:
        return Operand(base.argval, True, tuple(attributes))
    name = base.argval[-1] if base.opname == "LOAD_FAST_LOAD_FAST" else base.argval
    is_local = base.opname in (*_LOCALS, "LOAD_FAST_LOAD_FAST")
    if is_local and not any(_sets(instruction, name) for instruction in instructions):
        return Operand(name, False, tuple(attributes))
    return None


def _sets(instruction: dis.Instruction, name: str) -> bool:
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return instruction.opname.startswith(("STORE_", "DELETE_")) and name in names


@functools.cache
def operands(code: CodeType) -> tuple[Operand, ...]:
    """What code compares with by ``is``, beside constants.

    >>> def f(x, mode): return type(x) is int or mode is enum.CONFORM or x is None
    >>> for operand in operands(f.__code__):
    ...     print(operand.name, operand.attributes)
    int ()
    enum ('CONFORM',)
    """
    instructions = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
    found = (right_operand(instructions, at) for at, i in enumerate(instructions) if _is_is(i))
    return tuple(operand for operand in found if operand is not None)


def _is_is(instruction: dis.Instruction) -> bool:
    return instruction.opname == "IS_OP"


def are_fixed(frame: Any) -> bool:
    """Whether all that the code of a frame compares with is one object for good; at its start."""
    return all(_is_fixed(_value(operand, frame)) for operand in operands(frame.f_code))


def _is_fixed(value: Any) -> bool:
    return isinstance(value, _FIXED) or type(value) is object and value is not _MISSING


def _value(operand: Operand, frame: Any) -> Any:
    if operand.is_global:
        value = frame.f_globals.get(operand.name, vars(builtins).get(operand.name, _MISSING))
    else:
        value = frame.f_locals.get(operand.name, _MISSING)
    for attribute in operand.attributes:
        value = _attribute(value, attribute)
    return value


def _attribute(owner: Any, name: str) -> Any:
    """An attribute of a module, an enum or a class, read without running any code."""
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, _MISSING)
    if isinstance(owner, enum.EnumMeta):
        return owner._member_map_.get(name, _MISSING)
    if isinstance(owner, type):
        return next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), _MISSING)
    return _MISSING
