"""Messages of protocol buffers, read without their definitions: numbered fields of bytes.

>>> fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69]))
{1: [150], 2: [b'hi']}
"""

from __future__ import annotations

from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(message: bytes | memoryview) -> dict[int, list[Any]]:
    """Return values of each field by its number: integers, or the bytes of texts and messages.

    Raises:
      ValueError: these bytes are no such message.
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
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            value, at = int.from_bytes(view[at : at + size], "little"), at + size
        else:
            raise ValueError(f"wire type {kind} of field {number} at byte {at}")
        found.setdefault(number, []).append(value)
    return found


def _integer(view: memoryview, at: int) -> tuple[int, int]:
    """Return an integer of seven bits a byte, and the place of the next value."""
    value = shift = 0
    while at < len(view):
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a message ends within a number")
