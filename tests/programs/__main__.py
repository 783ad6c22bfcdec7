"""Judge the programs, all or those whose names hold a word: ``python -m tests.programs [WORD ...]``.

Prints a line for each that is not equal, counts by file, and the lists for ``known.py``.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.programs.executors import EXECUTORS
from tests.programs.harness import Verdict, run
from tests.programs.writing import PROGRAMS


def main(words: list[str]) -> None:
    """Judge, and print."""
    names = [name for name in PROGRAMS if not words or any(word in name for word in words)]
    for executor in EXECUTORS:
        counts: Counter[tuple[str, str]] = Counter()
        found: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
        for name in names:
            start = time.perf_counter()
            try:
                outcome = run(name, executor)
            except AssertionError as error:
                print(f"{executor} BAD {error}")
                continue
            seconds = time.perf_counter() - start
            found[outcome.verdict].append(name)
            counts[name.partition(".")[0], outcome.verdict.value] += 1
            if outcome.verdict is not Verdict.EQUAL or seconds > 2:
                text = " ".join(outcome.words.split())
                print(f"{executor} {outcome.verdict.value} {name} ({seconds:.1f} s): {text[:240]}")
            sys.stdout.flush()
        for (group, verdict), count in sorted(counts.items()):
            print(f"{executor} {group}: {count} {verdict}")
        print(executor, {verdict.value: len(some) for verdict, some in found.items()})


if __name__ == "__main__":
    main(sys.argv[1:])
