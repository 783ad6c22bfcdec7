"""Origins of kernels: the operator and the line of Python of each.

A trace carries the programs that ran in it, as XLA has optimized them. Their instructions name
their origins: ``jit(torch_jax_program)/jit(aten.softmax)/exp``, and the frames of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_OPERATOR = re.compile(r"jit\((\w+)\.(\w+)\)")
_MODULE = re.compile(r"jit_(\w+)\.(\w+)")
# Numbers of fields in XLA's messages (xplane.proto, hlo.proto, xla_data.proto), and paths of them:
# programs are bytes of statistics of the metadata of events.
_PLANES, _PLANE_NAME, _PROGRAMS = 1, 2, (4, 2, 5, 6, 1)
_INSTRUCTIONS, _INSTRUCTION_METADATA, _FRAMES = (3, 2), 7, 17
_OP_NAME, _FRAME = 2, 15
# Kinds of fields in any message; of fixed sizes, with their bytes.
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}


class Origin(NamedTuple):
    """The origin of an instruction; empty texts where it is unknown."""

    operator: str  # such as ``aten::softmax``
    path: str  # JAX's own name of the operator, from the program to the primitive
    line: str  # ``file.py(12): function``, as PyTorch's profiler writes frames


class Program(NamedTuple):
    """A program that a trace carries, with the origins of its instructions by their names."""

    name: str
    origins: dict[str, Origin]


def origins(trace: bytes) -> list[Program]:
    """Return the programs of a trace."""
    return [
        Program(_text(module, 1), dict(_instructions(module)))
        for plane in _messages(fields(trace), _PLANES)
        if _text(plane, _PLANE_NAME) == "/host:metadata"
        for module in _messages(plane, *_PROGRAMS)
    ]


def of_name(module: str) -> Origin | None:
    """Return the origin in the name of a program, the only one for single operators.

    >>> of_name("jit_aten.mm").operator
    'aten::mm'
    """
    operator = _MODULE.fullmatch(module)
    return Origin("::".join(operator.groups()), module, "") if operator else None


def _instructions(module: dict[int, list[Any]]) -> Iterator[tuple[str, Origin]]:
    lines: dict[int, str] = {}  # frames of Python by their numbers, which begin with 1
    for index in _messages(module, _FRAMES):
        files, functions = ([one.decode() for one in index.get(n, ())] for n in (1, 2))
        places = list(_messages(index, 3))
        for number, frame in enumerate(_messages(index, 4), start=1):
            place = places[frame.get(1, [1])[0] - 1]
            file, function = (place.get(n, [1])[0] - 1 for n in (1, 2))
            lines[number] = f"{files[file]}({place.get(3, [0])[0]}): {functions[function]}"
    for instruction in _messages(module, *_INSTRUCTIONS):
        for metadata in _messages(instruction, _INSTRUCTION_METADATA):
            path = _text(metadata, _OP_NAME)
            found = _OPERATOR.search(path)
            operator = "::".join(found.groups()) if found else ""
            line = lines.get(metadata.get(_FRAME, [0])[0], "")
            yield _text(instruction, 1), Origin(operator, path, line)


def _messages(message: dict[int, list[Any]], *path: int) -> Iterator[dict[int, list[Any]]]:
    """Yield the messages at the end of a path of fields."""
    for inner in map(fields, message.get(path[0], ())):
        if path[1:]:
            yield from _messages(inner, *path[1:])
        else:
            yield inner


def _text(message: dict[int, list[Any]], number: int) -> str:
    return message.get(number, [b""])[0].decode()


def fields(message: bytes | memoryview) -> dict[int, list[Any]]:
    """Return the values of each field of a protocol buffer: integers, or bytes.

    >>> fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69]))
    {1: [150], 2: [b'hi']}
    """
    view = memoryview(message)
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(view):
        value: Any
        tag, at = _integer(view, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _integer(view, at)
        elif kind == _BYTES:
            length, at = _integer(view, at)
            value, at = view[at : at + length].tobytes(), at + length
        else:
            size = _FIXED[kind]
            value, at = int.from_bytes(view[at : at + size], "little"), at + size
        found.setdefault(number, []).append(value)
    return found


def _integer(view: memoryview, at: int) -> tuple[int, int]:
    """Return an integer of seven bits a byte, and the place of the next value."""
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
