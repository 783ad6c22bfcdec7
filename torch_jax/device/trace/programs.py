"""Origins of kernels: the operator and the line of Python of each.

A trace carries the programs that ran in it, as XLA has optimized them. Their instructions name
their origins: ``jit(torch_jax_program)/jit(aten.softmax)/exp``, and the frames of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_jax.device.trace.wire import fields

_OPERATOR = re.compile(r"jit\((\w+)\.(\w+)\)")
_MODULE = re.compile(r"jit_(\w+)\.(\w+)")
# Numbers of fields in XLA's messages: xplane.proto, hlo.proto and xla_data.proto.
_PLANES, _PLANE_NAME, _METADATA, _METADATA_STATS = 1, 2, 4, 5
_MODULE_COMPUTATIONS, _MODULE_FRAMES = 3, 17
_INSTRUCTIONS, _INSTRUCTION_METADATA = 2, 7
_OP_NAME, _FRAME = 2, 15


class Origin(NamedTuple):
    """The origin of an instruction; empty texts where it is unknown."""

    operator: str
    """Such as ``aten::softmax``."""

    path: str
    """JAX's own name of the operator, from the program to the primitive."""

    line: str
    """``file.py(12): function``, as PyTorch's profiler writes frames."""


class Program(NamedTuple):
    """A program that a trace carries, with the origins of its instructions by their names."""

    name: str
    origins: dict[str, Origin]


def origins(trace: bytes) -> list[Program]:
    """Return the programs of a trace."""
    return [
        Program(_text(module, 1), dict(_instructions(module)))
        for plane in map(fields, fields(trace).get(_PLANES, ()))
        if _text(plane, _PLANE_NAME) == "/host:metadata"
        for entry in map(fields, plane.get(_METADATA, ()))
        for metadata in map(fields, entry.get(2, ()))
        for module in _programs(metadata)
    ]


def of_name(module: str) -> Origin | None:
    """Return the origin in the name of a program, the only one for single operators.

    >>> of_name("jit_aten.mm").operator
    'aten::mm'
    """
    operator = _MODULE.fullmatch(module)
    return Origin("::".join(operator.groups()), module, "") if operator else None


def _programs(metadata: dict[int, list[Any]]) -> Iterator[dict[int, list[Any]]]:
    """Yield the program that an entry holds, as bytes of a statistic."""
    for stat in map(fields, metadata.get(_METADATA_STATS, ())):
        for given in stat.get(6, ()):
            for module in fields(given).get(1, ()):
                yield fields(module)


def _instructions(module: dict[int, list[Any]]) -> Iterator[tuple[str, Origin]]:
    lines = _lines(module)
    for computation in map(fields, module.get(_MODULE_COMPUTATIONS, ())):
        for instruction in map(fields, computation.get(_INSTRUCTIONS, ())):
            for metadata in map(fields, instruction.get(_INSTRUCTION_METADATA, ())):
                path = _text(metadata, _OP_NAME)
                operator = _OPERATOR.search(path)
                yield (
                    _text(instruction, 1),
                    Origin(
                        "::".join(operator.groups()) if operator else "",
                        path,
                        lines.get(metadata.get(_FRAME, [0])[0], ""),
                    ),
                )


def _lines(module: dict[int, list[Any]]) -> dict[int, str]:
    """Return frames of Python by their numbers, which begin with 1."""
    frames: dict[int, str] = {}
    for index in map(fields, module.get(_MODULE_FRAMES, ())):
        files, functions = ([one.decode() for one in index.get(n, ())] for n in (1, 2))
        places = [fields(one) for one in index.get(3, ())]
        for number, frame in enumerate(map(fields, index.get(4, ())), start=1):
            place = places[frame.get(1, [1])[0] - 1]
            file, function = (place.get(n, [1])[0] - 1 for n in (1, 2))
            frames[number] = f"{files[file]}({place.get(3, [0])[0]}): {functions[function]}"
    return frames


def _text(message: dict[int, list[Any]], number: int) -> str:
    return message.get(number, [b""])[0].decode()
