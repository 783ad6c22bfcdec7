"""Programs that an executor is known to get wrong or to refuse; this list is to become empty.

A listed program must fail, so that it is taken off the list when it does not any more. The lines
stand in ``wrong_without_proof.txt``, which ``python -m tests.programs --write`` makes anew: the
executor, the verdict, the program.
"""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("wrong_without_proof.txt")


def _read() -> frozenset[tuple[str, str]]:
    rows = [line.split() for line in FILE.read_text().splitlines() if line]
    return frozenset((executor, name) for executor, _, name in rows)


WRONG_WITHOUT_PROOF = _read()


def write(found: list[tuple[str, str, str]]) -> None:
    """Write the list: executor, verdict and name of each program that is not equal."""
    FILE.write_text("".join(f"{' '.join(row)}\n" for row in sorted(found)))
