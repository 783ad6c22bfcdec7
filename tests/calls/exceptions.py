"""Calls that are no fair comparison: where CPU PyTorch itself is wrong, or says nothing.

A line is a pattern that the printed call matches, and one that the message of the failure does.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.calls.call import Call


class Exempt(NamedTuple):
    """Failures that are not ours."""

    reason: str
    call: str
    failure: str


EXCEPTIONS: tuple[Exempt, ...] = ()


def exempt(call: Call, error: Exception) -> bool:
    """Whether a failure is one of the table's."""
    return any(
        re.search(line.call, repr(call)) and re.search(line.failure, str(error))
        for line in EXCEPTIONS
    )
