"""The number that random tests begin with, and the third of many cases that a change asks for."""

import functools
import os
import subprocess
import zlib

from tests.support.imports import ROOT

LANDED = ROOT / ".ci" / "landed"
THIRDS = 3


@functools.cache
def commit_number() -> int:
    """Return the number of commits below the present change; ``TESTS_COMMIT`` says another.

    Each change draws other tests than the one before, and the same ones until CI has passed it. The
    number is 0 where git does not know the commit, as in the files of a source distribution.
    """
    if "TESTS_COMMIT" not in os.environ:
        command = ["git", "rev-list", "--count", landed()["base"]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        os.environ["TESTS_COMMIT"] = done.stdout.strip() or "0"  # for the processes of tests, too
    return int(os.environ["TESTS_COMMIT"])


def landed() -> dict[str, str]:
    """Return the two commits of ``.ci/landed``: ``base`` and ``whole``."""
    return dict(line.split() for line in LANDED.read_text().splitlines())


def first_number(count: int) -> int:
    """Return the first of ``count`` numbers; those of the next change are others."""
    return commit_number() * count


def in_third(name: str, number: int) -> bool:
    """Return whether a number asks for a name; three numbers in a row ask for all names.

    >>> [in_third("add", number) for number in range(3)].count(True)
    1
    """
    return (zlib.crc32(name.encode()) // 2 + number) % THIRDS == 0
