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

from torch_jax.capture.state.bytecode import instructions_of
from torch_jax.capture.state.places import MISSING, ClassAttribute

_FIXED = (
    type, enum.Enum, types.FunctionType, types.BuiltinFunctionType, types.ModuleType,
    types.NoneType, bool, types.EllipsisType, types.NotImplementedType,
    torch.dtype, torch.layout, torch.memory_format,
)  # fmt: skip
_LOCALS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF")
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")


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
    >>> [(operand.name, operand.attributes) for operand in operands(f.__code__)]
    [('int', ()), ('enum', ('CONFORM',))]
    """
    instructions = instructions_of(code)
    places = [at for at, instruction in enumerate(instructions) if instruction.opname == "IS_OP"]
    found = (right_operand(instructions, at) for at in places)
    return tuple(operand for operand in found if operand is not None)


def are_fixed(frame: Any) -> bool:
    """Whether all that the code of a frame compares with is one object for good; at its start."""
    return all(_is_fixed(_value(operand, frame)) for operand in operands(frame.f_code))


def _is_fixed(value: Any) -> bool:
    return isinstance(value, _FIXED) or type(value) is object


def _value(operand: Operand, frame: Any) -> Any:
    if operand.is_global:
        value = frame.f_globals.get(operand.name, vars(builtins).get(operand.name, MISSING))
    else:
        value = frame.f_locals.get(operand.name, MISSING)
    for attribute in operand.attributes:
        value = _attribute(value, attribute)
    return value


def _attribute(owner: Any, name: str) -> Any:
    """An attribute of a module, an enum or a class, read without running any code."""
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, MISSING)
    if isinstance(owner, enum.EnumMeta):
        return owner._member_map_.get(name, MISSING)
    if isinstance(owner, type):
        return ClassAttribute.read(owner, name)
    return MISSING
