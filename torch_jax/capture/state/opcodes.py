"""Which bytecode is understood: the instructions of which a compiled call can stand for many runs.

The list is one of what is understood, for CPython 3.11 to 3.13; any other instruction is not. Code
that holds one runs at each call.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import NamedTuple

from torch_jax.capture.state import attribute_hooks, identities
from torch_jax.capture.state.bytecode import instructions_of

_UNDERSTOOD = frozenset(
    # the stack, and nothing else
    """CACHE EXTENDED_ARG NOP RESUME PUSH_NULL POP_TOP COPY SWAP PRECALL KW_NAMES MAKE_CELL
    COPY_FREE_VARS LOAD_CLOSURE EXIT_INIT_CHECK RETURN_GENERATOR
    LOAD_CONST RETURN_CONST RETURN_VALUE LOAD_ASSERTION_ERROR LOAD_COMMON_CONSTANT
    """
    # local variables, and the places that are noted and guarded
    """LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST STORE_FAST
    STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST STORE_FAST_MAYBE_NULL DELETE_FAST
    LOAD_GLOBAL STORE_GLOBAL LOAD_DEREF STORE_DEREF DELETE_DEREF
    LOAD_ATTR LOAD_METHOD STORE_ATTR DELETE_ATTR LOAD_SUPER_ATTR LOAD_SUPER_METHOD
    IMPORT_NAME IMPORT_FROM
    LOAD_ZERO_SUPER_ATTR LOAD_ZERO_SUPER_METHOD
    """
    # operators and containers, of values whose types are understood
    """UNARY_POSITIVE UNARY_NEGATIVE UNARY_NOT UNARY_INVERT BINARY_OP COMPARE_OP CONTAINS_OP IS_OP
    TO_BOOL BINARY_SUBSCR BINARY_SLICE STORE_SUBSCR STORE_SLICE DELETE_SUBSCR BUILD_SLICE
    BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP BUILD_STRING LIST_TO_TUPLE
    LIST_APPEND LIST_EXTEND SET_ADD SET_UPDATE MAP_ADD DICT_MERGE DICT_UPDATE
    UNPACK_SEQUENCE UNPACK_EX FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE
    GET_LEN MATCH_MAPPING MATCH_SEQUENCE MATCH_KEYS
    """
    # control flow
    """GET_ITER GET_YIELD_FROM_ITER FOR_ITER END_FOR END_SEND SEND YIELD_VALUE JUMP_FORWARD
    JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP JUMP_NO_INTERRUPT JUMP_IF_FALSE_OR_POP
    JUMP_IF_TRUE_OR_POP POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_NONE
    POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_TRUE
    POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE
    """
    # calls, of functions that are seen; ``with``
    """CALL CALL_KW CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2 MAKE_FUNCTION
    SET_FUNCTION_ATTRIBUTE BEFORE_WITH WITH_EXCEPT_START PUSH_EXC_INFO POP_EXCEPT RERAISE
    RAISE_VARARGS CLEANUP_THROW SETUP_WITH SETUP_CLEANUP SETUP_FINALLY POP_BLOCK
    """.split()
)
ONE_OBJECT = "asks whether two objects are one"
_WHY = {
    "IMPORT_STAR": "imports all names inside the function",
    "MATCH_CLASS": "matches a value against a class",
    "LOAD_BUILD_CLASS": "makes a class inside the function",
    "CHECK_EXC_MATCH": "catches an exception",
    "CHECK_EG_MATCH": "catches an exception",
}
# Attributes that tell of tensors what a program does not keep to, and those that change what a
# program reads or writes by another way than an operator.
_TENSOR_INSIDES = frozenset(
    """_version _base is_leaf grad_fn output_nr retains_grad retain_grad _cdata _backward_hooks
    _is_view data_ptr storage untyped_storage _typed_storage storage_offset as_strided set_
    share_memory_ is_shared numpy _post_accumulate_grad_hooks refine_names
    __array__ __dlpack__ __cuda_array_interface__""".split()
)
_STORED_INSIDES = frozenset(("data", "__class__", "__dict__", "__code__"))
_DUNDERS = frozenset(
    """__init__ __name__ __qualname__ __version__ __len__ __call__ __getitem__ __post_init__
    __enter__ __exit__ __torch_function__ forward""".split()
)
_CONSTANTS = ("LOAD_CONST", "RETURN_CONST")


class Doubt(NamedTuple):
    """A line of code, and why a compiled call cannot stand for it."""

    line: str
    why: str

    def __str__(self) -> str:
        return f"{self.why} ({self.line})"


@functools.cache
def doubt_of(code: CodeType) -> Doubt | None:
    """The first thing in the code that is not understood; None where all of it is.

    Code of functions inside is looked at when these run.

    >>> def f(x): return [x * i for i in range(3) if i not in (1,)]
    >>> doubt_of(f.__code__) is None
    True
    >>> def g(x):
    ...     class Inner: ...
    ...     return x
    >>> doubt_of(g.__code__).why
    'it makes a class inside the function'
    """
    instructions = instructions_of(code)
    line = code.co_firstlineno
    for at, instruction in enumerate(instructions):
        line = _line_of(instruction) or line
        why = _why(code, instructions, at)
        if why is not None:
            return Doubt(f"{code.co_filename}:{line}, in {code.co_name}", f"it {why}")
    return None


def _line_of(instruction: dis.Instruction) -> int | None:
    positions = instruction.positions
    return positions.lineno if positions is not None else None


def _why(code: CodeType, instructions: list[dis.Instruction], at: int) -> str | None:
    instruction = instructions[at]
    name, value = instruction.opname, instruction.argval
    if name in ("CHECK_EXC_MATCH", "PUSH_EXC_INFO"):
        if _only_raises(instructions, at) or attribute_hooks.only_tries_to_ask_on(code):
            return None
    if name not in _UNDERSTOOD:
        return _WHY.get(name, f"runs an instruction that is not understood, {name}")
    if name == "IS_OP" and not (
        _compares_with_constant(instructions, at) or identities.right_operand(instructions, at)
    ):
        return ONE_OBJECT
    if name == "PUSH_EXC_INFO" and _catches(instructions, at):
        return "catches an exception"
    if name == "LOAD_ATTR" and value == "__class__" and _asks_for_a_name(instructions, at):
        return None
    if attribute_hooks.asks_on(code, instructions, at):
        return None
    if name in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"):
        return _why_not_named(str(value), stores=name not in ("LOAD_ATTR", "LOAD_METHOD"))
    if name.startswith("CALL_INTRINSIC") and "IMPORT_STAR" in instruction.argrepr:
        return _WHY["IMPORT_STAR"]
    return None


def _catches(instructions: list[dis.Instruction], at: int) -> bool:
    """Whether a handler keeps the exception; ``finally`` and ``with`` raise it again."""
    if instructions[at + 1].opname == "WITH_EXCEPT_START":
        return False
    for instruction in instructions[at + 1 :]:
        if instruction.opname in (
            "POP_EXCEPT",
            "CHECK_EXC_MATCH",
            "CHECK_EG_MATCH",
            "RETURN_VALUE",
        ):
            return True
        if instruction.opname == "RERAISE":
            return False
    return True


def _only_raises(instructions: list[dis.Instruction], at: int) -> bool:
    """Whether nothing goes on after the handler at ``at``: wherever it leads, it raises."""
    place = {instruction.offset: n for n, instruction in enumerate(instructions)}
    handlers = (n for n in range(at + 1) if instructions[n].opname == "PUSH_EXC_INFO")
    left = [max(handlers, default=0)]
    seen: set[int] = set()
    while left:
        n = left.pop()
        instruction = instructions[n]
        if instruction.opname.startswith(("RETURN", "YIELD", "SEND")):
            return False
        if n in seen or instruction.opname in ("RERAISE", "RAISE_VARARGS"):
            continue
        seen.add(n)
        if instruction.opcode in (*dis.hasjrel, *dis.hasjabs):
            left.append(place[instruction.argval])  # never into the middle of an instruction
        if not instruction.opname.startswith("JUMP_") or "_IF_" in instruction.opname:
            left.append(n + 1)
    return True


def _asks_for_a_name(instructions: list[dis.Instruction], at: int) -> bool:
    """Whether of a class nothing is read but its name; which class it is has a guard."""
    return instructions[at + 1].argval in ("__name__", "__qualname__")


def _compares_with_constant(instructions: list[dis.Instruction], at: int) -> bool:
    return instructions[at - 1].opname in _CONSTANTS


def _why_not_named(name: str, stores: bool) -> str | None:
    if name in _TENSOR_INSIDES or (stores and name in _STORED_INSIDES):
        return f"{'sets' if stores else 'uses'} .{name}"
    if name.startswith("__") and name.endswith("__") and name not in _DUNDERS:
        return f"uses .{name}"
    return None
